"use strict";
// Text of a corpus is set as textContent only, so that it cannot act as markup.

// --- Elements and words ----------------------------------------------------------------------------------------------

// A text in the reader's language, from "English|Chinese", with values in place of {}.
function say(texts, ...values) {
  return texts.split("|")[document.documentElement.lang === "zh" ? 1 : 0].replace(/\{\}/g, () => values.shift());
}

function make(name, parent, text, properties) {
  const element = Object.assign(document.createElement(name), properties);
  if (text !== undefined) element.textContent = text;
  parent?.append(element);
  return element;
}

function makeButton(parent, text, onclick, className = "plain") {
  return make("button", parent, text, { type: "button", className, onclick });
}

const SVG = "http://www.w3.org/2000/svg";

function makeInSVG(name, parent, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent.append(element);
  return element;
}

// A cluster has a colour and a shape: the shape for readers who do not see the colour, and for more clusters than colours.
// All shapes have the area of a circle of radius 1: circle, square, triangle, diamond, triangle on its tip.
const SHAPES = ["M-1 0A1 1 0 1 0 1 0A1 1 0 1 0-1 0Z", "M-.89-.89H.89V.89H-.89Z", "M0-1.55L1.35.78H-1.35Z",
                "M0-1.25L1.25 0L0 1.25L-1.25 0Z", "M0 1.55L1.35-.78H-1.35Z"];
const shapeOf = cluster => SHAPES[(cluster + Math.floor(cluster / 5)) % 5];  // differs where colours repeat
const STAR = "M0-2.6L.65-.9 2.47-.8 1.05.34 1.53 2.1 0 1.1-1.53 2.1-1.05.34-2.47-.8-.65-.9Z";  // the reader's own use
const colourOf = cluster => `var(--c${cluster % 5})`;

function makeShape(parent, cluster, attributes) {
  makeInSVG("path", parent, { d: shapeOf(cluster), ...attributes }).style.setProperty("--color", colourOf(cluster));
}

// The shape of a cluster as a small picture.
function makeSign(parent, cluster) {
  const sign = makeInSVG("svg", parent,
    { viewBox: "-1.6 -1.6 3.2 3.2", role: "img", "aria-label": say("Group {}|第 {} 组", cluster + 1), class: "sign" });
  makeShape(sign, cluster);
}

// Tokens that are written without a space before them: closing marks, and parts of contractions.
const CLOSING = /^(?:[.,;:!?%)\]}’”…]+|n['’]t|['’](?:s|re|ve|ll|d|m))$/i;
const spaced = words => words.map((word, number) => (number && !CLOSING.test(word) ? " " : "") + word).join("");

// A use: what stands before it, at most `around` words, the word or phrase itself, and what stands after it.
function partsOf({ words, position, length = 1 }, around = Infinity) {
  const start = Math.max(0, position - around), stop = position + length, end = stop + around;
  const before = (start ? "… " : "") + spaced(words.slice(start, position)),
        after = spaced(["", ...words.slice(stop, end)]);
  return [before, words.slice(position, stop).join(" "), after + (end < words.length ? " …" : "")];
}

// The words around a use, the word itself marked.
function putUse(element, use, around) {
  const [before, word, after] = partsOf(use, around);
  element.dir = "auto";
  element.append(before && `${before} `, make("mark", null, word), after);
  if (use.cluster !== undefined) element.style.setProperty("--color", colourOf(use.cluster));
}

// --- Places and labels -----------------------------------------------------------------------------------------------

// For each use the nearest word beside it that is not one of the grammar words, which labels its mark.
function nearestWords(uses, grammar, reach = 6) {
  const telling = word => /\p{L}{3}|\p{Script=Han}/u.test(word ?? "") && !grammar.has(word.toLowerCase());
  return uses.map(({ words, position, length = 1 }) => {
    for (let step = 1; step <= reach; step++) {
      const found = [words[position - step], words[position + length - 1 + step]].find(telling);
      if (found) return found;
    }
    return "";
  });
}

const countsOf = items => items.reduce((counts, item) => counts.set(item, (counts.get(item) ?? 0) + 1), new Map());

// Words in many of the sentences, for lack of a list of grammar words.
function commonWords(uses) {
  const counts = countsOf(uses.flatMap(use => [...new Set(use.words.map(word => word.toLowerCase()))]));
  return new Set([...counts.keys()].filter(word => counts.get(word) > Math.max(2, .1 * uses.length)));
}

// The places of uses on planes of SVG units. One scale for all layers and both axes: vectors have unit length in each
// layer, so distances are comparable.
function placesOf(planes, width, height, margin) {
  const ranges = [0, 1].map(axis => {
    const values = planes.flat().map(point => point[axis]), least = Math.min(...values), most = Math.max(...values);
    return { middle: (least + most) / 2, span: Math.max(most - least, 1e-6) };
  });
  const scale = Math.min((width - 2 * margin) / ranges[0].span, (height - 2 * margin) / ranges[1].span);
  return planes.map(plane => plane.map(([x, y]) => [
    width / 2 + scale * (x - ranges[0].middle), height / 2 - scale * (y - ranges[1].middle)
  ]));
}

const overlaps = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];

// Where labels can stand without covering marks, boxes that are taken, or each other: {text, x, y} for those of `labels`,
// {text, at, width}, that can, tried in their order beside, above and below their points.
function placeLabels(labels, points, taken, radius, width, height) {
  const boxes = [...points.map(([x, y]) => [x - radius, y - radius, x + radius, y + radius]), ...taken], line = 14;
  return labels.flatMap(({ text, at: [x, y], width: wide }) => {
    const corners = [[x + radius + 3, y - line / 2], [x - radius - 3 - wide, y - line / 2],
      [x - wide / 2, y - radius - line - 1], [x - wide / 2, y + radius + 1]];
    const box = corners.map(([left, top]) => [left, top, left + wide, top + line])
      .find(each => each[0] > 2 && each[1] > 2 && each[2] < width - 2 && each[3] < height - 2
        && !boxes.some(other => overlaps(each, other)));
    if (!box) return [];
    boxes.push(box);
    return [{ text, x: box[0], y: box[3] - 3 }];
  });
}

const mean = values => values.reduce((sum, each) => sum + each, 0) / values.length;

// The name of a layer; of a plane beyond the top layer, which shows the word beside its text.
function layerName(layer, top) {
  if (top && layer === 0) return say("Layer 0: letters only|第 0 层：只有字母");
  if (layer > top) return say("The word beside its text|词与全句");
  return layer === top ? say("Layer {}: the top|第 {} 层：最上层", layer) : say("Layer {}|第 {} 层", layer);
}

// --- The map ---------------------------------------------------------------------------------------------------------

// Draw the map of a word's uses into an empty element: the scatter plot of a layer with its words, small plots of all
// layers, and a card for each cluster. `options` may have `layer` (shown first), `grammar` (a set of words that are no labels),
// `onLayer` and `onChoose` (called with the layer or the use that is chosen). Returns a function that chooses a use.
function drawWordMap(root, data, options = {}) {
  const { uses, planes } = data, last = planes.length - 1, top = data.layers === "use" ? last - 1 : last,
        own = data.nearest ? uses.length - 1 : -1,  // the use in the reader's own sentence
        labels = nearestWords(uses, options.grammar ?? commonWords(uses)),
        second = data.word.toLowerCase().split(" + ")[1]?.split(",") ?? [];
  if (own >= 0) labels[own] = "";
  let layer = options.layer ?? last, chosen = -1, only = null, places, radius, size;
  const isShown = use => only === null || uses[use].cluster === only;
  root.classList.add("word-map");
  const figure = make("figure", root, undefined, { className: "plot" });
  const row = make("div", root, undefined, { className: "layers", role: "group", ariaLabel: say("Layers|各层") }),
        cards = make("div", root);
  const readout = make("figcaption", figure,
    say("Point at a mark, tap it or use the arrow keys to read its sentence.|指向或轻触标记，或用方向键，即可读到它的句子。"));
  const svg = makeInSVG("svg", figure, { role: "listbox", tabindex: 0 });
  const marks = uses.map((use, number) => {
    const isSecond = second.includes(partsOf(use)[1].toLowerCase());
    const mark = makeInSVG("g", svg,
      { role: "option", id: `use-${number}`, class: isSecond ? "mark second" : "mark", "aria-selected": false });
    makeShape(mark, use.cluster, number === own ? { d: STAR } : {});
    mark.ariaLabel = `${spaced(use.words)} (${say("group {}|第 {} 组", use.cluster + 1)})`;
    return mark;
  });
  const names = makeInSVG("g", svg, { class: "labels", "aria-hidden": true });
  const small = placesOf(planes, 200, 130, 12).map((points, number) => {
    const button = makeButton(null, undefined, () => { showLayer(number); options.onLayer?.(number); }, "");
    const plot = makeInSVG("svg", button, { viewBox: "0 0 200 130", "aria-hidden": true });
    points.forEach(([x, y], use) => {
      makeShape(plot, uses[use].cluster, { transform: `translate(${x.toFixed(1)} ${y.toFixed(1)}) scale(3)` });
    });
    make("span", button, layerName(number, top));
    row.prepend(button);  // the top layer above
    return button;
  });
  row.hidden = last === 0;  // of stored vectors there may be one representation only

  // The names of groups above them, where the marks are apart, and the labels of as many marks as have room.
  function showNames() {
    const points = places[layer], pen = document.createElement("canvas").getContext("2d"), taken = [];
    names.replaceChildren();
    const put = (text, x, y, attributes) => {
      const label = makeInSVG("text", names, { x: x.toFixed(1), y: y.toFixed(1), ...attributes });
      label.textContent = text;
      return label;
    };
    // A name in the middle of its points, or above what is there already.
    const putName = (text, [x, y], attributes) => {
      const half = pen.measureText(text).width * .64 + 6, across = Math.max(half, Math.min(size[0] - half, x));
      const boxAt = height => [across - half, height - 16, across + half, height + 4];
      while (y > 36 && taken.some(box => overlaps(box, boxAt(y)))) y -= 6;
      taken.push(boxAt(y));
      return put(text, across, y, attributes);
    };
    pen.font = "italic 600 17px serif";
    if (own >= 0) putName(say("your sentence|您的句子"), [points[own][0], points[own][1] - 3 * radius], { class: "name own" });
    const isApart = points.some(([x, y]) => Math.hypot(x - points[0][0], y - points[0][1]) > 150);
    for (const [number, { substitutes }] of isApart && data.clusters.length > 1 ? data.clusters.entries() : []) {
      const members = points.filter((_, use) => uses[use].cluster === number),
            middle = [0, 1].map(axis => mean(members.map(each => each[axis])));
      putName(substitutes.slice(0, size[0] < 560 ? 1 : 2).join(", "), [middle[0], middle[1] + 6], { class: "name" })
        .style.setProperty("--color", colourOf(number));
    }
    pen.font = "12px sans-serif";
    const order = new Set([...data.clusters.flatMap(cluster => cluster.typical), ...uses.keys()]);
    const wanted = [...order].filter(use => labels[use] && isShown(use)).map(use => ({
      text: labels[use], at: points[use], width: pen.measureText(labels[use]).width * 1.06
    }));
    for (const { text, x, y } of placeLabels(wanted, points, taken, radius, ...size)) put(text, x, y);
  }

  function showLayer(number) {
    layer = number;
    marks.forEach((mark, use) => {
      const [x, y] = places[layer][use];
      mark.style.transform = `translate(${x.toFixed(1)}px, ${y.toFixed(1)}px) scale(${radius})`;
    });
    small.forEach((button, each) => { button.ariaPressed = each === layer; });
    svg.ariaLabel = say("Map of {} uses of {}. {}|{} 个用例的地图：{}。{}", uses.length, data.word, layerName(layer, top));
    showNames();
  }

  function resize() {
    const width = Math.max(280, figure.clientWidth), isNarrow = width < 560;
    size = [width, Math.round(isNarrow ? width * 1.05 : Math.min(width * .62, 560))];
    radius = uses.length > 300 ? 4.5 : isNarrow ? 5.5 : 6.5;
    places = placesOf(planes, ...size, isNarrow ? 24 : 48);
    svg.setAttribute("viewBox", `0 0 ${size.join(" ")}`);
    showLayer(layer);
  }

  // Choose a use: its mark is emphasized, its sentence shown.
  function choose(use) {
    marks[chosen]?.classList.remove("chosen");
    if (chosen >= 0) marks[chosen].ariaSelected = false;
    chosen = use;
    marks[use].classList.add("chosen");
    marks[use].ariaSelected = true;
    names.before(marks[use]);  // above the other marks
    svg.setAttribute("aria-activedescendant", marks[use].id);
    readout.replaceChildren();
    putUse(readout, uses[use], 30);
    options.onChoose?.(use);
  }

  // The use whose mark is nearest to a point of the screen, if one is near; else -1.
  function useAt(event) {
    const box = svg.getBoundingClientRect(), zoom = size[0] / box.width;
    const across = (event.clientX - box.left) * zoom, down = (event.clientY - box.top) * zoom;
    const distances = places[layer].map(([x, y], use) => isShown(use) ? Math.hypot(x - across, y - down) : Infinity);
    const least = Math.min(...distances);
    return least < 28 ? distances.indexOf(least) : -1;
  }
  svg.addEventListener("pointermove", event => {
    const use = event.pointerType === "mouse" ? useAt(event) : -1;
    if (use >= 0 && use !== chosen) choose(use);
  });
  svg.addEventListener("click", event => { const use = useAt(event); if (use >= 0) choose(use); });
  svg.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const use = { Home: 0, End: uses.length - 1 }[event.key] ?? (step && Math.max(0, chosen + step));
    if (use === undefined) return;
    event.preventDefault();
    choose(Math.min(use, uses.length - 1));
  });

  // Show only one cluster, or all.
  function focusCluster(cluster) {
    only = only === cluster ? null : cluster;
    marks.forEach((mark, use) => mark.classList.toggle("dim", !isShown(use)));
    cards.querySelectorAll("button").forEach((button, number) => { button.ariaPressed = number === only; });
    showNames();
  }
  data.clusters.forEach((cluster, number) => {
    const card = make("section", cards, undefined,
      { className: "cluster", ariaLabel: say("Group {}|第 {} 组", number + 1) });
    card.style.setProperty("--color", colourOf(number));
    makeSign(card, number);
    const title = data.clusters.length === 1 ? say("All {} uses|全部 {} 个用例", cluster.size) : cluster.size === 1 ? say("Group {}: 1 use|第 {} 组：1 个用例", number + 1)
      : say("Group {}: {} uses|第 {} 组：{} 个用例", number + 1, cluster.size);
    makeButton(card, title, () => focusCluster(number)).ariaPressed = false;
    if (cluster.substitutes.length) make("p", card, cluster.substitutes.slice(0, 6).join(", "));
    for (const use of cluster.typical.slice(0, 3)) {
      putUse(make("p", card, undefined, { className: "typical", onpointerenter: () => choose(use) }), uses[use], 8);
    }
  });

  resize();
  new ResizeObserver(() => {
    if (figure.clientWidth && Math.abs(figure.clientWidth - size[0]) > 1) resize();
  }).observe(figure);
  return choose;
}
