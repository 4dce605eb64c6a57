import { $, ask, bindKey, complain, make, number } from "/ui/common.js";
import { events } from "/ui/stream.js";

let messages = []; // what was said in this chat, as the API wants it
let running = null; // AbortController of the answer that is being written

const USAGE = { include_usage: true, continuous_usage_stats: true };

/** The request's fields that were filled in; the server has the defaults and judges the values. */
function sampling() {
  const fields = {};
  for (const input of document.querySelectorAll("[data-field]")) {
    if (input.validity.badInput) throw new Error(`${input.dataset.field} is not a number`);
    if (input.value !== "") fields[input.dataset.field] = Number(input.value);
  }
  if ($("stop_text").value) fields.stop = [$("stop_text").value];
  return fields;
}

function bodyOf(text) {
  const common = { model: $("model").value || undefined, stream: true, stream_options: USAGE, ...sampling() };
  if ($("endpoint").value === "completion") return ["/v1/completions", { ...common, prompt: text }];
  const system = $("system").value.trim() ? [{ role: "system", content: $("system").value }] : [];
  return ["/v1/chat/completions", { ...common, messages: [...system, ...messages, { role: "user", content: text }] }];
}

const textOf = (choice) => choice.delta?.content ?? choice.text ?? "";

/** An answer being written: its bubble, its text, and the times by which its speed is told. */
class Answer {
  constructor() {
    this.body = make("div", { className: "text" });
    this.note = make("div", { className: "note", text: "waiting ..." });
    this.bubble = make("article", { className: "assistant busy" }, this.body, this.note);
    this.text = "";
    this.began = performance.now();
    this.first = this.last = this.usage = this.reason = null;
  }

  take(event) {
    if (event.usage) this.usage = event.usage;
    for (const choice of event.choices) {
      const piece = textOf(choice);
      if (piece) {
        this.last = performance.now();
        this.first ??= this.last;
        this.text += piece;
        this.body.append(piece); // a text node: what a model writes is never HTML
      }
      if (choice.finish_reason) this.reason = choice.finish_reason;
    }
    this.note.textContent = this.figures();
  }

  /** Tokens a second count from the first token on: the wait before it is the TTFT. */
  figures() {
    const parts = [];
    if (this.first !== null) parts.push(`TTFT ${(this.first - this.began).toFixed(0)} ms`);
    if (this.usage) {
      const { prompt_tokens: prompt, completion_tokens: completion } = this.usage;
      parts.push(`${number(prompt)} + ${number(completion)} tokens`);
      const seconds = (this.last - this.first) / 1000;
      if (completion > 1 && seconds > 0) parts.push(`${((completion - 1) / seconds).toFixed(1)} tok/s`);
    }
    if (this.reason) parts.push(this.reason);
    return parts.join(" · ");
  }

  end(reason) {
    if (reason) this.reason = reason;
    this.bubble.classList.remove("busy");
    this.note.textContent = this.figures() || "no answer";
    $("figures").textContent = this.figures();
  }
}

function show(element) {
  $("hint").hidden = true;
  $("log").append(element);
  element.scrollIntoView({ block: "end" });
}

async function send(text) {
  complain(null);
  let path, body;
  try {
    [path, body] = bodyOf(text);
  } catch (error) {
    complain(error);
    return;
  }
  const question = make("article", { className: "user" }, make("div", { className: "text", text }));
  const answer = new Answer();
  show(question);
  show(answer.bubble);
  $("prompt").value = "";
  const mine = messages; // another chat may begin before this answer ends
  const controller = busy(new AbortController());
  try {
    const options = { method: "POST", body: JSON.stringify(body), signal: controller.signal };
    const response = await ask(path, { ...options, headers: { "Content-Type": "application/json" } });
    for await (const event of events(response)) {
      answer.take(event);
      if (atEnd()) answer.bubble.scrollIntoView({ block: "end" });
    }
    answer.end();
  } catch (error) {
    answer.end(error.name === "AbortError" ? "stopped" : "failed");
    if (error.name !== "AbortError") complain(error);
    if (!answer.text && error.name !== "AbortError") takeBack(text, question, answer);
  } finally {
    if (running === controller) busy(null);
  }
  if (answer.text) mine.push({ role: "user", content: text }, { role: "assistant", content: answer.text });
}

/** Nothing came of it: the text is there to be sent again. */
function takeBack(text, question, answer) {
  question.remove();
  answer.bubble.remove();
  $("prompt").value = text;
}

function busy(controller) {
  running = controller;
  $("send").disabled = running !== null;
  $("stop").disabled = running === null;
  return running;
}

function atEnd() {
  const log = $("log");
  return log.scrollHeight - log.scrollTop - log.clientHeight < 80;
}

function clear() {
  running?.abort();
  busy(null);
  messages = [];
  $("log").replaceChildren($("hint"));
  $("hint").hidden = false;
  $("figures").textContent = "";
  complain(null);
}

async function listModels() {
  try {
    const { data } = await (await ask("/v1/models")).json();
    $("model").replaceChildren(...data.map((card) => make("option", { text: card.id })));
    complain(null);
  } catch (error) {
    complain(error);
  }
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running === null && $("prompt").value.trim()) send($("prompt").value);
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("ask").requestSubmit();
});
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", clear);
bindKey($("key"), listModels);
listModels();
