// A pool of blocks as a canvas of cells. Painting 100,000 takes some 70 ms; later only those that changed are painted.

const CACHED = 128; // bit 7 of a block's byte; the other bits are its references
const LARGEST = 36;
const LABEL_FROM = 14; // pixels of a cell from which on its references are written into it
const SHARED = [[8, "shared8"], [4, "shared4"], [3, "shared3"], [2, "shared2"]];
export const NAMES = ["free", "cached", "private", "shared2", "shared3", "shared4", "shared8", "swapped"];

export const refsOf = (byte) => byte & ~CACHED;
export const isPublished = (byte) => (byte & CACHED) !== 0;

function deviceState(byte) {
  const refs = refsOf(byte);
  if (refs > 1) return SHARED.find(([least]) => refs >= least)[1];
  if (refs === 1) return "private";
  return isPublished(byte) ? "cached" : "free";
}

const hostState = (byte) => (byte ? "swapped" : "free");

/** State by byte value. */
export const DEVICE = Array.from({ length: 256 }, (_, byte) => deviceState(byte));
export const HOST = Array.from({ length: 256 }, (_, byte) => hostState(byte));

export class Grid {
  /** `root` holds two canvases, cells below marks; `states` names the state of each byte value. */
  constructor(root, states, maxHeight) {
    this.root = root;
    [this.cells, this.marks] = root.querySelectorAll("canvas");
    this.states = states;
    this.maxHeight = maxHeight;
    this.bytes = new Uint8Array(0);
    this.cell = this.columns = this.width = 0;
    this.colours = {};
  }

  /** Show these bytes. Only what differs from before is painted, unless sizes or colours changed. */
  update(bytes) {
    const before = this.bytes;
    this.bytes = bytes;
    if (before.length !== bytes.length || this.root.clientWidth !== this.width) {
      this.redraw();
      return;
    }
    const context = this.cells.getContext("2d");
    for (let i = 0; i < bytes.length; i++) if (bytes[i] !== before[i]) this.paint(context, i);
  }

  /** Lay out anew and paint everything: after a change of size, of colours, of the pool. */
  redraw() {
    const style = getComputedStyle(document.documentElement);
    for (const name of [...NAMES, "label", "label-most", "notch", "held"]) this.colours[name] = style.getPropertyValue(`--${name}`).trim();
    const count = this.bytes.length;
    this.width = this.root.clientWidth;
    if (!count || !this.width) return;
    this.cell = fittingCell(count, this.width, this.maxHeight);
    this.columns = Math.floor(this.width / this.cell);
    const rows = Math.ceil(count / this.columns);
    for (const canvas of [this.cells, this.marks]) resize(canvas, this.columns * this.cell, rows * this.cell);
    this.root.dataset.cell = this.cell;
    this.root.dataset.columns = this.columns;
    const context = this.cells.getContext("2d");
    for (let i = 0; i < count; i++) this.paint(context, i);
  }

  /** The block at a position relative to the canvas, or null. */
  at(x, y) {
    const column = Math.floor(x / this.cell);
    const block = Math.floor(y / this.cell) * this.columns + column;
    return column >= 0 && column < this.columns && block >= 0 && block < this.bytes.length ? block : null;
  }

  /** Mark the blocks `held`, and among them strongly `focus` (or null). */
  mark(held, focus) {
    const context = this.marks.getContext("2d");
    context.clearRect(0, 0, this.marks.width, this.marks.height);
    context.strokeStyle = context.fillStyle = this.colours.held;
    context.lineWidth = this.cell >= 10 ? 2 : 1;
    for (const block of held) this.frame(context, block, 0.5);
    context.lineWidth = 3;
    if (focus !== null && focus < this.bytes.length) this.frame(context, focus, -1);
  }

  frame(context, block, inset) {
    const [x, y] = this.place(block);
    if (this.cell < 6 && inset > 0) context.fillRect(x, y, this.cell, this.cell);
    else context.strokeRect(x + inset, y + inset, this.cell - 1 - 2 * inset, this.cell - 1 - 2 * inset);
  }

  place(block) {
    return [(block % this.columns) * this.cell, Math.floor(block / this.columns) * this.cell];
  }

  paint(context, block) {
    const [x, y] = this.place(block);
    const byte = this.bytes[block];
    const side = this.cell - (this.cell >= 5 ? 1 : 0);
    context.fillStyle = this.colours[this.states[byte]];
    context.fillRect(x, y, side, side);
    const refs = refsOf(byte);
    if (isPublished(byte) && refs && this.cell >= 8) {
      const notch = Math.ceil(this.cell / 5);
      context.fillStyle = this.colours.notch;
      context.fillRect(x + side - notch, y + side - notch, notch, notch);
    }
    if (refs > 1 && this.cell >= LABEL_FROM) {
      context.fillStyle = this.colours[refs >= SHARED[0][0] ? "label-most" : "label"];
      context.font = `600 ${Math.floor(this.cell * 0.55)}px system-ui, sans-serif`;
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.fillText(refs, x + side / 2, y + side / 2 + 1);
    }
  }
}

/** The largest cell with which `count` of them fit; if none does the map is higher than wanted. */
function fittingCell(count, width, height) {
  let cell = Math.min(LARGEST, Math.max(1, Math.floor(Math.sqrt((width * height) / count))));
  while (cell > 1 && Math.ceil(count / Math.floor(width / cell)) * cell > height) cell--;
  return cell;
}

function resize(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  canvas.getContext("2d").scale(scale, scale);
}
