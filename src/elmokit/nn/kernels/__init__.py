"""Fast paths with the signature of the reference in `nn.lstm`, each tested equal to it."""
