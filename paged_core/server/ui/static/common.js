// What both pages share: elements by id, the key, requests to the server, and its errors in words.

const KEY = "paged-core-key";

export const $ = (id) => document.getElementById(id);

/** An element with text (never HTML), a class and children. */
export function make(tag, { text, className, title } = {}, ...children) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  if (title) element.title = title;
  element.append(...children);
  return element;
}

/** The key lives as long as the tab. `changed` is called when it was edited. */
export function bindKey(field, changed) {
  field.value = sessionStorage.getItem(KEY) ?? "";
  field.addEventListener("change", () => {
    sessionStorage.setItem(KEY, field.value);
    changed();
  });
}

/** fetch with the key; throws an Error that says what the server said when the status is not 2xx. */
export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  const key = $("key").value.trim();
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    // A key with characters that no header may have fails here as well.
    throw new Error(`the server cannot be reached (${error.message})`);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const text = await response.text();
  let message = text.slice(0, 500) || response.statusText;
  try {
    message = JSON.parse(text).error.message;
  } catch {
    // Not an error object (a proxy's page, say): its beginning is shown as it is.
  }
  const error = new Error(`${response.status}: ${message}`);
  error.status = response.status;
  return error;
}

/** Show an error in the page's banner; null hides it. */
export function complain(error) {
  $("error").hidden = !error;
  $("error").textContent = error ? error.message : "";
}

export const number = (value) => value.toLocaleString("en");
