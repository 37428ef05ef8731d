// Opens pages in Chromium as a phone, a tablet, a desk and paper have them, and prints what is wrong with each, as JSON by page.
// node judge.mjs CHROMIUM FOLDER PAGE...; FOLDER: an empty one, for the browser's profile.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const PATIENT = 180_000; // milliseconds: a busy machine may stand still for a while
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
export const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
];
const VIEWS = [
  { name: "390", width: 390 },
  { name: "820", width: 820 },
  { name: "1440", width: 1440 },
  { name: "390, dark", width: 390, dark: true },
  { name: "1440, dark", width: 1440, dark: true },
  { name: "print", width: 794, print: true },
];

export async function browser(executablePath, profile) {
  const context = await chromium.launchPersistentContext(profile, { executablePath, args: FLAGS, timeout: PATIENT });
  context.setDefaultTimeout(PATIENT);
  return context;
}

// What the laid-out page is like. It runs in the page, where nothing of this file is known.
function measured({ paper }) {
  const wrong = [], width = document.documentElement.clientWidth;
  const outside = (e) => e.getBoundingClientRect().right > width + 1;
  if (document.documentElement.scrollWidth > width) wrong.push("it scrolls sideways");
  for (const e of document.querySelectorAll("section, figure, h1, p, .tile, pre")) {
    if (outside(e)) wrong.push(`it sticks out: ${e.tagName} ${e.textContent.trim().slice(0, 40)}`);
  }
  const seen = (e) => e.checkVisibility();
  for (const e of document.querySelectorAll("td")) {
    if (e.getBoundingClientRect().width > width) wrong.push(`a cell is wider than the page: ${e.textContent.slice(0, 40)}`);
  }
  const [over, figure] = ["choice-0", "choice-1"].map((name) => [...document.querySelectorAll(`[name="${name}"]`)]);
  for (const one of over) {
    for (const other of figure.length ? figure : [null]) {
      one.checked = true;
      if (other) other.checked = true;
      const shown = [...document.querySelectorAll("[data-choice-0]")].filter(seen);
      const right = ({ dataset }) => dataset["choice-0"] === one.value && (!other || dataset["choice-1"] === other.value);
      const all = document.querySelectorAll("[data-choice-0]").length;
      if (paper ? shown.length !== all : shown.length !== 1 || !right(shown[0])) wrong.push(`chosen ${one.value}, ${other?.value}; shown: ${shown.length}`);
    }
  }
  for (const e of [...document.querySelectorAll("svg.plot")].filter(seen)) {
    const { width: w, height: h } = e.getBoundingClientRect(), name = e.getAttribute("aria-label");
    if (w < 100 || h < 50) wrong.push(`a plot has no area: ${name}`);
    const wide = e.closest(".wide"), ticks = e.querySelectorAll('g[id*="xtick_"] text').length;
    if (ticks < 2) wrong.push(`${ticks} numbers on an axis: ${name}`);
    const least = Math.min(...[...e.querySelectorAll("text")].map((t) => t.getBoundingClientRect().height));
    const ends = [...e.querySelectorAll('g[id*="xtick_"] text')].map((t) => t.getBoundingClientRect()).sort((a, b) => a.x - b.x);
    if (ends.some((one, n) => n && one.left < ends[n - 1].right)) wrong.push(`ticks collide: ${name}`);
    if (!wide && least < 11 && !paper) wrong.push(`text of ${least.toFixed(1)} px in a plot: ${name}`);
  }
  for (const e of paper ? document.querySelectorAll("details > :not(summary, .download)") : []) {
    if (!seen(e)) wrong.push(`folded on paper: ${e.parentElement.textContent.trim().slice(0, 40)}`);
  }
  return wrong;
}

// Pages that a printed document has: Chromium writes their objects uncompressed.
const sheets = (pdf) => pdf.toString("latin1").match(/\/Type\s*\/Page\b(?!s)/g)?.length ?? 0;

async function judged(context, path, view) {
  const page = await context.newPage(), wrong = [], url = pathToFileURL(path).href;
  page.on("console", (said) => ["error", "warning"].includes(said.type()) && wrong.push(`the console: ${said.text()}`));
  page.on("pageerror", (error) => wrong.push(`an error: ${error.message}`));
  await page.route((asked) => asked.href !== url, (route) => route.abort()); // it is told, and waits for nobody
  page.on("request", (asked) => asked.url() !== url && wrong.push(`it asks for ${asked.url()}`));
  await page.setViewportSize({ width: view.width, height: 900 });
  await page.emulateMedia({ media: view.print ? "print" : "screen", colorScheme: view.dark ? "dark" : "light" });
  await page.goto(url, { waitUntil: "load", timeout: PATIENT });
  wrong.push(...(await page.evaluate(measured, { paper: Boolean(view.print) })));
  if (!view.print) { // axe is about screens; what is folded is judged unfolded too
    await page.evaluate(axe);
    for (const open of [false, true]) {
      await page.evaluate((open) => document.querySelectorAll("details").forEach((e) => (e.open = open)), open);
      const { violations } = await page.evaluate("axe.run(document, { resultTypes: ['violations'] })");
      for (const { id, impact, nodes } of violations) {
        if (["serious", "critical"].includes(impact)) wrong.push(`axe: ${id}: ${nodes.map((n) => n.html.slice(0, 120)).join(" | ")}`);
      }
    }
  }
  const printed = view.print ? sheets(await page.pdf({ preferCSSPageSize: true })) : 0;
  await page.close();
  return { wrong: [...new Set(wrong)].map((each) => `${view.name}: ${each}`), printed };
}

if (import.meta.filename === process.argv[1]) {
  const [executable, profile, ...paths] = process.argv.slice(2);
  const context = await browser(executable, profile), found = {};
  for (const path of paths) {
    const each = [];
    for (const view of VIEWS) each.push(await judged(context, path, view));
    found[path] = { wrong: each.flatMap((one) => one.wrong), sheets: Math.max(...each.map((one) => one.printed)) };
  }
  await context.close();
  console.log(JSON.stringify(found));
}
