"""A classifier of your own in ten lines, on one vector for each text: python
examples/tasks/ten_lines.py
"""

from pathlib import Path

import torch

import elmokit


def main() -> None:
    lines = (
        (Path(__file__).parent / "data" / "reviews.train.txt")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    labels, texts = zip(*(line.split(" ", 1) for line in lines), strict=True)
    vectors = torch.from_numpy(elmokit.Embedder().encode(texts))
    targets = torch.tensor([label == "positive" for label in labels]).float()
    torch.manual_seed(0)
    classifier = torch.nn.Sequential(
        torch.nn.Linear(vectors.shape[1], 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    )
    optimizer = torch.optim.Adam(classifier.parameters(), lr=1e-2)
    for _ in range(100):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            classifier(vectors).squeeze(1), targets
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(
        f"{((classifier(vectors).squeeze(1) > 0) == targets.bool()).float().mean():.0%} of the "
        f"training set"
    )


if __name__ == "__main__":
    main()
