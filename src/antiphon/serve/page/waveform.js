// The shape of a sound, drawn while it grows.

const PEAK = 240; // samples of one peak: 10 ms at 24 kHz
const BAR = 3; // CSS pixels of one bar and the space behind it
const QUIET = 0.25; // peaks below it leave room above them, others fill the height
const SHOWN = 800; // peaks that the width holds until there are more: 8 s

export class Waveform {
  #canvas;
  #peaks = [];
  #rest = []; // samples that do not fill a peak yet
  #heard = 0; // 0 to 1
  #due = false;

  constructor(canvas) {
    this.#canvas = canvas;
    new ResizeObserver(() => this.#redraw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#redraw());
  }

  add(samples) {
    this.#rest.push(samples);
    const length = this.#rest.reduce((sum, part) => sum + part.length, 0);
    if (length < PEAK) return;
    let peak = 0;
    let count = 0;
    for (const part of this.#rest) {
      for (const sample of part) {
        peak = Math.max(peak, Math.abs(sample));
        count += 1;
        if (count === PEAK) {
          this.#peaks.push(peak);
          [peak, count] = [0, 0];
        }
      }
    }
    const last = this.#rest.at(-1);
    this.#rest = count ? [last.subarray(last.length - count)] : [];
    this.#redraw();
  }

  /** How much of it has been heard, in seconds. */
  set heardS(seconds) {
    this.#heard = this.#peaks.length ? seconds / (this.#peaks.length * 0.01) : 0;
    this.#redraw();
  }

  #redraw() {
    if (this.#due) return;
    this.#due = true; // however much arrives, once per frame
    requestAnimationFrame(() => {
      this.#due = false;
      this.#draw();
    });
  }

  #draw() {
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    const scale = devicePixelRatio || 1;
    this.#canvas.width = width * scale;
    this.#canvas.height = height * scale;
    const pen = this.#canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(this.#canvas);
    const [said, ahead] = [style.getPropertyValue("--heard"), style.getPropertyValue("--unheard")];
    const bars = Math.floor(width / BAR);
    const loudest = this.#peaks.reduce((most, peak) => Math.max(most, peak), QUIET);
    const each = Math.max(SHOWN, this.#peaks.length) / bars; // peaks of one bar
    for (let bar = 0; bar * each < this.#peaks.length; bar += 1) {
      const from = Math.floor(bar * each);
      const part = this.#peaks.slice(from, Math.max(from + 1, Math.floor((bar + 1) * each)));
      const tall = Math.max(2, (Math.max(...part) / loudest) * (height - 2));
      pen.fillStyle = from < this.#heard * this.#peaks.length ? said : ahead;
      pen.beginPath();
      pen.roundRect(bar * BAR, (height - tall) / 2, BAR - 1, tall, 1);
      pen.fill();
    }
  }
}
