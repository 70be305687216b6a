"use strict";
// Text of a corpus is set as textContent only, so that it cannot act as markup.

function make(name, parent, text, className) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  if (parent) parent.append(element);
  return element;
}

// A cluster has a colour and a shape: the shape for readers who do not see the colour, and for more clusters than colours.
// All shapes have the area of a circle of radius 1: circle, square, triangle, diamond, triangle on its tip.
const COLOURS = 8, SVG = "http://www.w3.org/2000/svg";
const SHAPES = ["M-1 0A1 1 0 1 0 1 0A1 1 0 1 0-1 0Z", "M-.89-.89H.89V.89H-.89Z", "M0-1.55L1.35.78H-1.35Z",
                "M0-1.25L1.25 0L0 1.25L-1.25 0Z", "M0 1.55L1.35-.78H-1.35Z"];
const colourOf = cluster => `var(--c${cluster % COLOURS})`;

function makeShape(parent, cluster) {
  const shape = document.createElementNS(SVG, "path");
  shape.setAttribute("d", SHAPES[cluster % SHAPES.length]);
  shape.style.fill = colourOf(cluster);
  parent.append(shape);
  return shape;
}

function makeSVG(parent, viewBox) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", viewBox);
  parent.append(svg);
  return svg;
}

// Tokens that are written without a space before them: closing marks, and parts of contractions.
const CLOSING = /^(?:[.,;:!?%)\]}’”…]+|n['’]t|['’](?:s|re|ve|ll|d|m))$/i;
const spaceBefore = word => CLOSING.test(word) ? "" : " ";

// The words around a use, the word itself marked.
function putUse(element, use, around = Infinity) {
  const stop = use.position + (use.length ?? 1), start = Math.max(0, use.position - around), end = stop + around;
  const spaced = use.words.slice(start, end).map((word, number) => (number ? spaceBefore(word) : "") + word);
  const position = use.position - start, gap = position ? spaceBefore(use.words[use.position]) : "";
  element.append((start ? "… " : "") + spaced.slice(0, position).join("") + gap);
  make("mark", element, use.words.slice(use.position, stop).join(" "));
  element.append(spaced.slice(stop - start).join("") + (end < use.words.length ? " …" : ""));
  if (use.cluster !== undefined) element.style.setProperty("--color", colourOf(use.cluster));
}

// The places of uses on a plane of SVG units. One scale for all layers and both axes: vectors have unit length in each
// layer, so distances are comparable.
function placesOf(planes, width, height, margin) {
  const all = planes.flat();
  const spans = [0, 1].map(axis => {
    const values = all.map(point => point[axis]);
    return [Math.min(...values), Math.max(...values)];
  });
  const scale = Math.min((width - 2 * margin) / Math.max(spans[0][1] - spans[0][0], 1e-6),
                         (height - 2 * margin) / Math.max(spans[1][1] - spans[1][0], 1e-6));
  return (layer, use) => {
    const [x, y] = planes[layer][use];
    const right = width / 2 + scale * (x - (spans[0][0] + spans[0][1]) / 2);
    const down = height / 2 - scale * (y - (spans[1][0] + spans[1][1]) / 2);
    return `translate(${right.toFixed(1)}px, ${down.toFixed(1)}px)`;
  };
}

// Draw the map of a word's uses into an empty element: the scatter plot of a layer, its slider, a card for each cluster.
function drawWordMap(root, data) {
  const WIDTH = 760, HEIGHT = 560, AROUND = 22, AROUND_IN_CARD = 9;
  const top = data.planes.length - 1, place = placesOf(data.planes, WIDTH, HEIGHT, 28);
  root.classList.add("word-map");

  const figure = make("figure", root), cards = make("div", root), tip = make("div", root, undefined, "word-map-tip");
  tip.hidden = true;
  const svg = makeSVG(figure, `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("role", "img");
  const radius = data.uses.length > 200 ? 4.5 : data.uses.length > 60 ? 6 : 9;
  const shapes = data.uses.map((use, number) => {
    const shape = makeShape(svg, use.cluster);
    shape.addEventListener("pointermove", event => { showTip(event, use); mark(number, true); });
    shape.addEventListener("pointerleave", () => { tip.hidden = true; mark(number, false); });
    return shape;
  });
  const mark = (use, isNear) => shapes[use].classList.toggle("near", isNear);

  function showTip(event, use) {
    tip.replaceChildren();
    putUse(tip, use, AROUND);
    tip.hidden = false;
    const box = tip.getBoundingClientRect(), below = event.clientY + 18;
    tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
    tip.style.top = `${below + box.height < innerHeight ? below : event.clientY - box.height - 14}px`;
  }

  const caption = make("figcaption", figure), label = make("label", caption, "Layer"), slider = make("input", caption);
  const shown = make("output", caption);
  caption.hidden = top === 0;  // of stored vectors there may be one representation only
  Object.assign(slider, { type: "range", min: 0, max: top, step: 1, value: top, id: "layer" });
  label.htmlFor = shown.htmlFor = slider.id;
  function showLayer() {
    const layer = Number(slider.value), note = layer === 0 ? ": token layer" : layer === top ? ": top layer" : "";
    shapes.forEach((shape, use) => { shape.style.transform = `${place(layer, use)} scale(${radius})`; });
    shown.textContent = `${layer} of ${top}${note}`;
    slider.setAttribute("aria-valuetext", shown.textContent);
    svg.setAttribute("aria-label", `Scatter plot of ${data.uses.length} uses of ${data.word}, layer ${shown.textContent}`);
  }
  slider.addEventListener("input", showLayer);
  showLayer();

  let chosen = null;
  function choose(cluster) {
    chosen = chosen === cluster ? null : cluster;
    shapes.forEach((shape, use) => {
      shape.classList.toggle("dim", chosen !== null && data.uses[use].cluster !== chosen);
    });
    cards.querySelectorAll("button").forEach((button, number) => {
      button.setAttribute("aria-pressed", String(number === chosen));
    });
  }
  data.clusters.forEach((cluster, number) => {
    const card = make("section", cards, undefined, "cluster");
    card.style.setProperty("--color", colourOf(number));
    card.setAttribute("aria-label", `Cluster ${number + 1}`);
    const sign = makeSVG(card, "-1.6 -1.6 3.2 3.2");
    sign.setAttribute("aria-hidden", "true");
    makeShape(sign, number);
    const button = make("button", card, `${number + 1}. ${cluster.size} uses`);
    Object.assign(button, { type: "button", title: "Show only this cluster, or all" });
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => choose(number));
    if (cluster.substitutes.length) make("p", card, cluster.substitutes.join(", "));
    const list = make("ul", card);
    cluster.typical.forEach(use => {
      const item = make("li", list);
      putUse(item, data.uses[use], AROUND_IN_CARD);
      item.addEventListener("pointerenter", () => mark(use, true));
      item.addEventListener("pointerleave", () => mark(use, false));
    });
  });

  const details = make("details", root);
  make("summary", details, "All uses");
  const list = make("ol", details);
  data.uses.forEach(use => putUse(make("li", list), use));
}
