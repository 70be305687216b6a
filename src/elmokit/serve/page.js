const byId = id => document.getElementById(id);
const viewOf = id => byId(`${id}-view`), formOf = id => viewOf(id).querySelector("form"),
      resultOf = id => viewOf(id).querySelector(".result");
const sum = values => values.reduce((total, each) => total + each, 0);
let apiKey = null;  // held in memory only
let server = null, corpus = null;  // answers of /info and /explore/corpus
let corpusAsked;  // a promise of the latter

class Failure extends Error {}

// The JSON answer of an endpoint of this server. Failure: its own words on why there is none.
async function ask(path, body, signal) {
  const headers = apiKey === null ? {} : { authorization: `Bearer ${apiKey}` };
  const options = body === undefined ? { headers, signal }
    : { method: "POST", headers, signal, body: JSON.stringify(body) };
  let response, answer;
  try {
    response = await fetch(path, options);
    answer = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (!response) throw new Failure(say("The server does not answer. Is it still running?|服务器没有应答。它还在运行吗？"));
  }
  if (response.ok && answer) return answer;
  const message = answer?.error?.message ?? say("no answer (status {})|没有应答（状态 {}）", response.status);
  throw Object.assign(new Failure(message), { status: response.status });
}

// --- Parts of results ------------------------------------------------------------------------------------------------

// A table whose rows are lists of elements and texts: the first is the row's head, the last a number.
function putTable(parent, caption, heads, rows) {
  const table = make("table", parent), last = heads.length - 1;
  make("caption", table, caption);
  const head = make("tr", make("thead", table)), body = make("tbody", table);
  const putCell = (row, name, cell, column) => {
    make(name, row, undefined, { className: column === last ? "number" : "" }).append(cell);
  };
  heads.forEach((name, column) => putCell(head, name ? "th" : "td", name, column));
  for (const cells of rows) {
    const row = make("tr", body);
    cells.forEach((cell, column) => putCell(row, column ? "td" : "th", cell, column));
  }
  for (const cell of table.querySelectorAll("th")) cell.scope = cell.parentNode === head ? "col" : "row";
  return table;
}

// A picture of parts, each [name of its element, where it begins, where it ends], from 0 to 1.
function makeStrip(...parts) {
  const strip = make("span", null, undefined, { className: "strip", ariaHidden: true });
  for (const [name, ...ends] of parts) {
    const [start, end] = ends.map(each => 100 * Math.max(0, Math.min(1, each)));
    Object.assign(make(name, strip).style,
      { insetInlineStart: `${start}%`, width: end > start ? `${end - start}%` : "" });
  }
  return strip;
}

// A table of shares with bars; rows of [label or element, length of the bar, printed share].
function putShares(parent, caption, name, rows) {
  putTable(parent, caption, [name, "", say("Probability|概率")],
    rows.map(([label, length, share]) => [label, makeStrip(["s", 0, length]), share]));
}

function percent(logProbability) {
  const share = 100 * Math.exp(logProbability);
  return share < 0.1 ? "< 0.1 %" : `${share.toFixed(share < 9.95 ? 1 : 0)} %`;
}

const nameOf = word => word === "</S>" ? say("(end of the sentence)|（句子结束）") : word;

// Candidates of the language model, with bars relative to the first; words are buttons if `onWord` is given.
function putCandidates(parent, caption, candidates, onWord) {
  putShares(make("div", parent), caption, say("Word|词"), candidates.map(({ word, log_probability }) => [
    onWord && !/^<.*>$/.test(word) ? makeButton(null, word, () => onWord(word)) : nameOf(word),
    Math.exp(log_probability - candidates[0].log_probability), percent(log_probability)
  ]));
}

// --- The yardstick: similarities of random pairs, 21 quantiles for each layer -----------------------------------------

let yardstick;  // a promise: it is computed once, when it is first needed
const quantilesOf = async () => (yardstick ??= ask("explore/yardstick").catch(() => []));
const halfOf = (name, quantiles) => [name, quantiles[5], quantiles[15]];

// A cosine on the scale from 0 to 1, with the middle half of the random pairs.
function cosineStrip(cosine, pairs) {
  return makeStrip(...pairs ? [halfOf("i", pairs.other_word), halfOf("b", pairs.same_word)] : [],
    ["u", cosine, cosine]);
}

// The share of random pairs below a cosine in per cent.
function percentile(quantiles, cosine) {
  const above = quantiles.findIndex(each => each > cosine);
  if (above <= 0) return above ? 99 : 0;
  return Math.round(5 * (above - 1 + (cosine - quantiles[above - 1]) / (quantiles[above] - quantiles[above - 1])));
}

function putLegend(parent, { other_word, same_word }) {
  const legend = make("p", parent, undefined, { className: "legend" });
  const entry = (part, text, from = 0, to = 1) => make("span", legend).append(makeStrip([part, from, to]), text);
  entry("i", say("half the pairs of two words (median {})|一半的异词对（中位数 {}）", other_word[10].toFixed(2)));
  entry("b", say("half the pairs of uses of one word (median {})|一半的同词对（中位数 {}）", same_word[10].toFixed(2)));
  entry("u", say("this pair|这一对"), .5, .5);
}

function putMeaning(parent, cosine, { other_word, same_word }) {
  const text = say("{} is more than {} % of random pairs of two words have, and more than {} % of random pairs of uses of one word. 1 is the same direction, 0 nothing in common.|{} 高于 {}% 的随机异词对，高于 {}% 的随机同词对。1 为方向相同，0 为毫无共同之处。",
    cosine.toFixed(2), percentile(other_word, cosine), percentile(same_word, cosine));
  make("p", parent, text, { className: "note" });
}

// --- Text and words --------------------------------------------------------------------------------------------------

const linesOf = text => text.split("\n").map(line => line.trim()).filter(Boolean);

// The lines of the reader's own text that have one of some words; null: the server's corpus is to be searched.
function ownSentences(...words) {
  const { source, text } = fieldsOf("map"),
        wanted = words.filter(Boolean).flatMap(word => word.toLowerCase().split(/, */));
  if (source !== "own") return null;
  const found = linesOf(text).filter(line => wanted.some(word => line.toLowerCase().includes(word)));
  if (!found.length) throw new Failure(say("your text has no “{}”|您的文本中没有“{}”", words[0]));
  return found;
}

// Take a text file as the reader's text, one sentence in each line.
async function takeFile(file) {
  const segmenter = new Intl.Segmenter(undefined, { granularity: "sentence" });
  const split = line => [...segmenter.segment(line)].map(each => each.segment.trim());
  formOf("map").elements.text.value = linesOf(await file.text()).flatMap(split).join("\n");
}

// Words that would work: of the reader's own text, or else of the corpus, those that look like `word` first.
function workingWords(word) {
  const { source, text } = fieldsOf("map");
  if (source !== "own") {
    const stem = word.toLowerCase().slice(0, 3);
    const alike = corpus?.frequent.filter(each => each.startsWith(stem) && each !== word) ?? [];
    return [...new Set([...alike.slice(0, 6), ...corpus?.examples ?? []])];
  }
  const counts = [...countsOf(text.match(/\p{L}{4,}/gu) ?? [])].filter(([, count]) => count > 2);
  return counts.sort((a, b) => b[1] - a[1]).slice(0, 12).map(([each]) => each);
}

// Two sentences of the corpus that have a word, as far apart as its twenty nearest uses.
async function sentencesWith(word) {
  const { neighbors } = await ask("neighbors", { word, sentence: [word], count: 20 });
  if (!neighbors.length) throw new Failure(say("the corpus has no “{}”|语料库中没有“{}”", word));
  return [neighbors[0], neighbors.at(-1)].map(use => spaced(use.words));
}

// Fill in a word, and where the view needs them sentences with it.
async function useWord(id, word, secondWord = "") {
  const { elements } = formOf(id), values = { word, second_word: secondWord, sentence: "" };
  try {
    if (id !== "map") [values.first, values.second] = await sentencesWith(word);
  } catch (error) {
    return putError(id, error, word);
  }
  for (const [name, value] of Object.entries(values)) if (elements[name]) elements[name].value = value;
  formOf(id).requestSubmit();
}

// Buttons for words, and for pairs of words, to look at.
function putWords(line, id, words) {
  for (const each of words) makeButton(line, each.join(" + "), () => useWord(id, ...each), "plain chip");
}

const WORD_PAIRS = [["bank", "shore"]];

function putExamples() {
  if (!corpus) return;
  const isKnown = word => corpus.examples.includes(word) || corpus.frequent.includes(word);
  for (const id of ["map", "compare"]) {
    const line = viewOf(id).querySelector(".examples"),
          pairs = id === "map" ? WORD_PAIRS.filter(pair => pair.every(isKnown)) : [];
    line.replaceChildren(say("Try|试试"));
    putWords(line, id, [...corpus.examples.map(word => [word]), ...pairs]);
  }
}

// --- The map, and the concordance ------------------------------------------------------------------------------------

let mapped = {};  // the fields of the map that is shown

function putMap(result, map, fields) {
  mapped = fields;
  const { layer } = formOf("map").elements, top = map.planes.length - 1;
  const story = make("p", result, storyOf(map), { className: "story" }), place = make("div", result),
        list = make("div", result, undefined, { className: "concordance" });
  const copy = makeButton(story, say("Copy the link|复制链接"), async () => {
    await navigator.clipboard.writeText(location.href);
    copy.textContent = say("Copied|已复制");
  });
  copy.hidden = !navigator.clipboard;  // which only HTTPS and localhost have
  const choose = drawWordMap(place, map, {
    layer: Math.min(top, Number(layer.value || top)),
    grammar: corpus && new Set(corpus.grammar),
    onLayer: number => { layer.value = number === top ? "" : number; keepInLink("map"); },
    onChoose: use => showRow(rows[use]),
  });
  if (map.nearest) {
    const found = map.nearest.map(({ use, similarity }) => {
      const quote = makeButton(null, undefined, () => choose(use), "plain quote");
      putUse(quote, map.uses[use], 14);
      return [quote, similarity.toFixed(2)];
    });
    putTable(list, say("Nearest to your sentence|离您的句子最近的用例"), [say("Use|用例"), say("Similarity, at most 1|相似度（最大为 1）")], found);
  }
  make("h3", list, say("All uses in their sentences|所有用例及其句子"));
  const rows = putConcordance(make("div", list), map, choose);
  if (map.nearest) choose(map.uses.length - 1);
}

// What one sees on a map.
function storyOf({ word, uses, uses_in_corpus, clusters, silhouette, nearest }) {
  const read = uses.length - (nearest ? 1 : 0), apart = silhouette.toFixed(2), own = uses.at(-1).cluster;
  const of = uses_in_corpus > read ? say(" of {}| / {}", uses_in_corpus) : "";
  const parts = [
    say("A language model read {}{} sentences with “{}”; nobody told it that a word has senses.|语言模型读了 {}{} 个含“{}”的句子；没有人告诉它词有哪些义项。", read, of, word),
    say("Each mark is one use; uses whose word and sentence it reads alike lie near each other.|每个标记是一个用例；词与全句读来相近的用例彼此靠近。"),
    clusters.length > 1
      ? say("It found {} groups (separation {}, at most 1), which may be senses, something else, or mixed: read them. In italics: words that it would put in the place of “{}”.|它分出 {} 组（分离度 {}，最大为 1），可能是义项，也可能不是，或者混在一起：请读一读例句。斜体是它会用来替换“{}”的词。", clusters.length, apart, word)
      : say("It found no clear groups (separation {}), though there may be senses.|它没有分出清楚的组（分离度 {}），但不等于没有不同的义项。", apart),
  ];
  if (word.includes(" + ")) parts.push(say("Hollow marks are “{}”.|空心标记是“{}”。", word.split(" + ")[1]));
  if (nearest && clusters.length > 1) parts.push(say("Your sentence, the star, is in group {} ({}).|您的句子（星）在第 {} 组（{}）。", own + 1, clusters[own].substitutes.slice(0, 2).join(", ")));
  return `${parts.join(" ")} `;
}

// Mark a row of the concordance, and bring it into sight there, without moving the page.
function showRow(row) {
  const list = row.closest("div"), { offsetTop } = row;
  list.querySelector(".chosen")?.classList.remove("chosen");
  row.classList.add("chosen");
  const place = offsetTop - list.scrollTop;
  if (place < 40 || place > list.clientHeight - 40) list.scrollTop = offsetTop - 80;
}

// A table of all uses, the word in the middle; returns its rows, one for each use.
function putConcordance(parent, { word, uses, clusters }, choose) {
  const table = make("table", parent, undefined, { dir: /[\u0590-\u08ff]/.test(word) ? "rtl" : "ltr" });
  const head = make("tr", make("thead", table)), body = make("tbody", table);
  const before = ({ words, position }) => words.slice(0, position).reverse().join(" ").toLowerCase();
  const after = ({ words, position, length }) => words.slice(position + length).join(" ").toLowerCase();
  const typical = clusters.flatMap(cluster => cluster.typical);
  // By group, the typical uses of each first.
  const group = (use, number) => use.cluster + (typical.includes(number) ? 0 : .5);
  const columns = [
    ["sign-cell", say("Group|组"), group], ["before", say("Before|前文"), before],
    ["keyword", say("Word|词"), use => partsOf(use)[1]], ["after", say("After|后文"), after],
  ];
  const rows = uses.map((use, number) => {
    const row = make("tr", null, undefined, { onclick: () => choose(number) }), parts = partsOf(use, 14);
    const [sign, left, keyword, right] = columns.map(([className]) => make("td", row, undefined, { className }));
    makeSign(sign, use.cluster);
    make("span", left, parts[0]);
    make("mark", keyword, parts[1]).style.setProperty("--color", colourOf(use.cluster));
    make("span", right, parts[2]);
    return row;
  });
  const sortBy = (cell, keyOf) => {
    const keys = uses.map(keyOf),
          order = [...keys.keys()].sort((a, b) => (keys[a] > keys[b]) - (keys[a] < keys[b]) || a - b);
    body.append(...order.map(use => rows[use]));
    for (const each of head.children) each.ariaSort = each === cell ? "ascending" : "none";
  };
  for (const [className, name, keyOf] of columns) {
    const cell = make("th", head, undefined, { className, scope: "col" });
    makeButton(cell, name, () => sortBy(cell, keyOf));
  }
  sortBy(head.firstChild, columns[0][2]);
  return rows;
}

// --- A sentence ------------------------------------------------------------------------------------------------------

// Surprisal of words in bits, from the words before or, with another kind of model, from all others.
function surprisals({ masked, forward }) {
  return (masked ?? forward.slice(0, -1)).map(each => -each / Math.LN2);
}

function putSentence(result, score) {
  const bits = surprisals(score), most = Math.max(12, ...bits), { words } = score;
  const list = make("ol", result, undefined, { className: "columns", dir: "auto" }),
        shown = make("div", result, undefined, { className: "pair" });
  const note = say("{} bits in all, {} bits a word (surprisal, −log₂ of the probability; one bit more is half as likely).|共 {} 比特，每词 {} 比特（意外度，即概率的 −log₂；多一比特，可能性减半）。", sum(bits).toFixed(0), mean(bits).toFixed(1));
  const unknown = say(" {} words are not in the vocabulary; their hatched columns are those of “some rare word”.| {} 个词不在词表中，其斜纹柱按“某个罕见词”计算。", score.unknown);
  make("p", result, note + (score.unknown ? unknown : ""), { className: "note" });
  const buttons = words.map((word, position) => {
    const text = bits[position].toFixed(1),
          button = makeButton(make("li", list), undefined, () => choose(position), "");
    button.ariaLabel = say("{}: {} bits|{}：{} 比特", word, text);
    make("small", button, text);
    make("i", button, undefined, { className: score.is_unknown[position] ? "unknown" : "" }).style.height =
      `${150 * bits[position] / most}px`;
    make("span", button, word);
    return button;
  });
  if (!score.masked) {
    buttons.push(makeButton(make("li", list), "…", () => choose(words.length), ""));
    buttons.at(-1).ariaLabel = say("what comes next|接下来是什么");
  }

  // Show what the model expects at a position.
  async function choose(position) {
    buttons.forEach((button, number) => { button.ariaPressed = number === position; });
    const before = words.slice(0, position), parts = make("div"), word = words[position];
    try {
      const [next, substitutes] = await Promise.all([
        score.masked ? null : ask("next_words", { sentence: before, top: 8 }),
        word === undefined ? null : ask("substitutes", { sentence: words, positions: [position], top: 8 }),
      ]);
      const caption = before.length
        ? say("After “{}”|在“{}”之后", (before.length > 5 ? "… " : "") + spaced(before.slice(-5)))
        : say("At the beginning of a sentence|句首");
      if (next) putCandidates(parts, caption, next.candidates, word === undefined ? continueWith : null);
      if (substitutes) putCandidates(parts, say("In place of “{}”, from both sides|替换“{}”（看两侧）", word),
        substitutes[0].candidates);
    } catch (error) {
      putErrorIn(parts, error);
    }
    if (buttons[position].ariaPressed === "true") shown.replaceChildren(...parts.children);  // no other was chosen meanwhile
  }
  function continueWith(word) {
    const field = formOf("sentence").elements.sentence;
    field.value = `${field.value.trimEnd()} ${word}`;
    submit("sentence", () => resultOf("sentence").querySelector("li:last-child button").click());
  }
  if (words.length) choose(bits.indexOf(Math.max(...bits)));
}

// --- A task ----------------------------------------------------------------------------------------------------------

// Spans of tags in the form B-X, I-X, O, E-X, S-X, or of other tags, each for its own word: [words, label or null].
function spansOf(words, tags) {
  const spans = [], isInside = tags.every(tag => /^(O|[BIES]-.+)$/.test(tag));
  words.forEach((word, number) => {
    const tag = tags[number], name = !isInside ? tag : tag === "O" ? null : tag.slice(2), last = spans.at(-1);
    if (isInside && /^[IE]/.test(tag) && last?.[1] === name) last[0].push(word);
    else spans.push([[word], name]);
  });
  return spans;
}

function putPrediction(result, prediction) {
  const { words, tags, scores, label } = prediction;
  if (tags) {
    const line = make("p", result, undefined, { className: "spans", dir: "auto" }), spans = spansOf(words, tags),
          names = [...new Set(spans.map(([, name]) => name).filter(Boolean))];
    for (const [of, name] of spans) {
      line.append(CLOSING.test(of[0]) ? "" : " ");
      if (name === null) line.append(spaced(of));
      else {
        const span = make("span", line, spaced(of));
        span.style.setProperty("--color", colourOf(names.indexOf(name)));
        make("small", span, name);
      }
    }
  } else if (scores && label) {
    const labels = Object.entries(scores).sort((left, right) => right[1] - left[1]);
    putShares(result, say("Label: {}|标签：{}", label), say("Label|标签"),
      labels.map(([name, share]) => [name, share, `${(100 * share).toFixed(0)} %`]));
  } else {
    make("pre", result, JSON.stringify(prediction, null, 1));
  }
}

// --- Views: what each asks, (fields, signal), and how it shows the answer, (result, answer, fields) -------------------

const views = {
  map: {
    async ask({ word, second_word, sentence, clusters }, signal) {
      const body = { word, second_word: second_word || null, sentence: sentence || null, clusters: clusters ? Number(clusters) : null, max_uses: 150,
        sentences: ownSentences(word, second_word) };
      return (await Promise.all([ask("senses", body, signal), corpusAsked]))[0];
    },
    show: putMap,
  },

  compare: {
    async ask({ word, first, second }, signal) {
      // Of a link with a word only, the sentences are those of another one.
      if (first === defaults.compare.first && word !== defaults.compare.word) {
        [first, second] = await sentencesWith(word);
        Object.entries({ first, second }).forEach(([name, text]) => { formOf("compare").elements[name].value = text; });
      }
      const answer = await ask("compare", { word, sentences: [first, second] }, signal);
      return { ...answer, pairs: await quantilesOf() };
    },
    show(result, { word, uses, layers, pairs }) {
      const top = server.layers - 1, shown = layers.slice(0, server.layers);  // without their mix
      const cosines = shown.map(({ similarities }) => mean(similarities.flatMap((row, left) => row.slice(left + 1))));
      const caption = say("Cosine similarity of {} uses of “{}”|{} 个“{}”用例的余弦相似度", uses.length, word);
      putTable(result, caption, [say("Layer|层"), "", say("Similarity|相似度")],
        cosines.map((cosine, layer) => [layerName(layer, top), cosineStrip(cosine, pairs[layer]), cosine.toFixed(2)]));
      if (pairs[top]) {
        putLegend(result, pairs[top]);
        putMeaning(result, cosines[top], pairs[top]);
      }
    },
  },

  sentence: {
    async ask({ sentence }, signal) {
      if (!sentence.trim()) throw new Failure(say("write a sentence|请写一个句子"));
      return (await ask("score", { inputs: [sentence] }, signal))[0];
    },
    show: putSentence,
  },

  task: {
    ask: async ({ text }, signal) => (await ask("predict", { inputs: [text] }, signal))[0],
    show: putPrediction,
  },
};

// --- The link: a view and its fields ----------------------------------------------------------------------------------

const isText = ([, value]) => typeof value === "string";
const fieldsOf = id => Object.fromEntries([...new FormData(formOf(id))].filter(isText));
const defaults = Object.fromEntries(Object.keys(views).map(id => [id, fieldsOf(id)]));

function linkTo(id) {
  const isTold = ([name, value]) => value !== defaults[id][name] && value.length < 6000;  // of the reader's text
  const fields = Object.entries(fieldsOf(id)).filter(isTold);
  if (language() !== browserLanguage) fields.push(["lang", language()]);
  return `#${id}${fields.length ? "?" : ""}${new URLSearchParams(fields)}`;
}
const keepInLink = id => history.replaceState(null, "", linkTo(id));

// Show the view of the link, with its fields, and ask for what it says.
function follow() {
  const [id, query = ""] = location.hash.slice(1).split("?"), shown = id in views && isOffered(id) ? id : "map",
        given = Object.fromEntries(new URLSearchParams(query));
  if (given.lang && given.lang !== language()) translate(given.lang === "zh" ? "zh" : "en");
  for (const [name, value] of Object.entries({ ...defaults[shown], ...given })) {
    const field = formOf(shown).elements[name] ?? formOf("map").elements[name];
    if (field) field.value = value;
  }
  for (const name of Object.keys(views)) viewOf(name).hidden = name !== shown;
  for (const link of document.querySelectorAll("nav a")) link.ariaCurrent = link.hash === `#${shown}` ? "page" : null;
  showSource();
  run(shown);
}

// Show what the form of a view asks for; a link to it becomes the page's address.
let afterwards = null;
function submit(id, then = null) {
  afterwards = then;
  if (linkTo(id) === location.hash) run(id);
  else location.hash = linkTo(id);  // and `follow`
}

// --- Running ----------------------------------------------------------------------------------------------------------

// For screen readers, which would otherwise read a whole table when it changes.
const announce = text => { byId("announcement").textContent = text; };

// What the server says in English; other messages stay as they are.
const CHINESE_ERRORS = [
  [/^a map needs (\d+) distinct uses of '(.*)', and there are (\d+).*/, "“$2”在语料里只有 $3 个不同的用例，画地图至少要 $1 个：请加上句子"],
  [/^sentence (\d+) has no word '(.*)'; its words are: (.*)/, "第 $1 句里没有“$2”这个词；它的词是：$3"],
  [/^this server has no corpus.*/, "这个服务器没有语料：请写上句子，或用 --corpus 启动"],
  [/^this is not the API key.*/, "密钥不对"],
  [/^(?:too many|the server is).*/, "服务器正忙，请稍候再试"],
];

function putErrorIn(element, error) {
  if (!(error instanceof Failure)) throw error;
  const known = language() === "zh" && CHINESE_ERRORS.find(([pattern]) => pattern.test(error.message));
  const text = known ? error.message.replace(...known) : error.message;
  const sentence = text[0].toUpperCase() + text.slice(1);
  element.replaceChildren(make("p", null, /[.?!。]$/.test(sentence) ? sentence : `${sentence}.`,
    { className: "error" }));
}

function putError(id, error, word) {
  const result = resultOf(id);
  putErrorIn(result, error);
  announce(result.textContent);
  const words = workingWords(word ?? "");
  if (!word || id === "sentence" || !words.length) return;
  const line = make("p", result, say("Words that would work:|可以试试："), { className: "examples" });
  if (id !== "map" && corpus?.frequent.includes(word)) {
    makeButton(line, say("“{}” in sentences of the corpus|语料库句子中的“{}”", word), () => useWord(id, word), "plain chip");
  }
  putWords(line, id, words.map(each => [each]));
}

// A line that says how long an answer takes, with a button to cancel; returns a function that takes it away.
function showWaiting(result, controller) {
  const line = make("p", null, undefined, { className: "waiting" }), began = performance.now();
  make("i", line);
  const time = make("span", line);
  const tick = () => {
    time.textContent = say("The model reads … {} s|模型正在读…… {} 秒", Math.round((performance.now() - began) / 1000));
  };
  makeButton(line, say("Cancel|取消"), () => controller.abort());
  const start = setTimeout(() => { tick(); result.classList.add("stale"); result.prepend(line); }, 200),
        timer = setInterval(tick, 1000);
  return () => { clearTimeout(start); clearInterval(timer); line.remove(); result.classList.remove("stale"); };
}

let running = null;  // the controller of the request that the page waits for
let showAgain = null;  // shows the last answer once more
async function run(id) {
  running?.abort();
  const controller = running = new AbortController(), result = resultOf(id), fields = fieldsOf(id), then = afterwards,
        stopWaiting = showWaiting(result, controller);
  afterwards = showAgain = null;
  try {
    const answer = await views[id].ask(fields, controller.signal);
    if (running !== controller) return;
    showAgain = () => { result.replaceChildren(); views[id].show(result, answer, fields); };
    showAgain();
    announce(`${viewOf(id).querySelector("h2").textContent}: ${say("the answer is there.|结果已就绪。")}`);
    then?.();
  } catch (error) {
    if (running !== controller) return;
    if (error.name === "AbortError") putError(id, new Failure(say("Cancelled.|已取消。")));
    else putError(id, error, fields.word);
  } finally {
    stopWaiting();
    if (running === controller) running = null;
  }
}

// --- Languages -------------------------------------------------------------------------------------------------------

const browserLanguage = navigator.language.startsWith("zh") ? "zh" : "en",
      language = () => document.documentElement.lang;

function translate(name) {
  document.documentElement.lang = name;
  for (const element of document.querySelectorAll("[data-zh]")) {
    element.dataset.en ??= element.textContent;
    element.textContent = element.dataset[name];
  }
  Object.assign(byId("language"),
    name === "zh" ? { textContent: "English", lang: "en" } : { textContent: "中文", lang: "zh" });
  document.title = say("elmokit: words in context|elmokit：语境中的词");
  putExamples();
  introduce();
}

// --- Starting --------------------------------------------------------------------------------------------------------

const isOffered = id => ({ task: ["tagging", "classification", "translation"].includes(server.task),
  sentence: server.predicts_words })[id] ?? true;

function introduce() {
  if (!server) return;
  byId("model").textContent = say("Model {}: {} layers, {} numbers in a vector|模型 {}：{} 层，向量 {} 维", server.model,
    server.layers, server.dim);
  if (corpus) {
    byId("corpus").textContent = say("Corpus: {}, {} sentences, {} words|语料库：{}，{} 句，{} 词",
      corpus.name ?? say("built in (public domain and CC0)|内置（公有领域与 CC0）"),
      corpus.sentences.toLocaleString(language()), corpus.words.toLocaleString(language()));
  }
  for (const link of document.querySelectorAll("nav a")) link.hidden = !isOffered(link.hash.slice(1));
}

function showSource() {
  const isOwn = formOf("map").elements.source.value === "own";
  byId("own").hidden = !isOwn;
  if (isOwn) formOf("map").querySelector("details").open = true;
}

function takeCorpus(answer) {
  corpus = answer;
  byId("words").replaceChildren(...corpus.frequent.map(value => make("option", null, undefined, { value })));
  putExamples();
  introduce();
}

async function start() {
  const key = byId("key");
  try {
    server = await ask("info");
    key.hidden = true;
  } catch (error) {
    key.hidden = error.status !== 401;
    return putErrorIn(key.hidden ? byId("model") : key.querySelector(".result"), error);
  }
  if (server.language === "zh") {  // of the model; the visitor's is another matter
    for (const field of document.querySelectorAll("[data-zh-value]")) field.value = field.dataset.zhValue;
    for (const id of Object.keys(views)) defaults[id] = fieldsOf(id);
  }
  if (server.has_corpus) corpusAsked = ask("explore/corpus").then(takeCorpus).catch(() => null);
  else defaults.map.source = "own";
  introduce();
  follow();
}

for (const field of document.querySelectorAll("input, textarea")) {
  Object.assign(field, { dir: "auto", autocomplete: "off" });
}
for (const id of Object.keys(views)) {
  formOf(id).onsubmit = event => {
    event.preventDefault();
    const now = fieldsOf(id), hasChanged = name => now[name] !== mapped[name];
    if (id === "map" && ["word", "second_word", "sentence", "source", "text"].some(hasChanged)) event.target.layer.value = "";
    submit(id);
  };
}
const { text, file, source } = formOf("map").elements;
text.ondragover = event => event.preventDefault();
text.ondrop = event => { event.preventDefault(); takeFile(event.dataTransfer.files[0]); };
file.onchange = () => takeFile(file.files[0]);
for (const select of document.querySelectorAll("select")) {
  select.onchange = () => {
    showSource();
    if (select !== source) select.form.requestSubmit();
  };
}
document.onkeydown = event => { if (event.key === "Escape") running?.abort(); };
byId("language").onclick = () => {
  translate(language() === "zh" ? "en" : "zh");
  keepInLink(Object.keys(views).find(id => !viewOf(id).hidden));
  showAgain?.();
};
byId("key").onsubmit = event => {
  event.preventDefault();
  apiKey = new FormData(event.target).get("key");
  start();
};
onhashchange = follow;
translate(browserLanguage);
start();
