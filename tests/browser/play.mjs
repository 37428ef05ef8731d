// Moves the sliders of play.html by the keyboard, and prints as JSON what the page says after each move.
// node play.mjs CHROMIUM FOLDER PAGE MOVES; MOVES: [[slider, key], ...] as JSON.
import { pathToFileURL } from "node:url";
import { browser } from "./judge.mjs";

// It runs in the page.
function said() {
  const text = (e) => e.textContent;
  return {
    says: text(document.getElementById("says")),
    crossings: [...document.querySelectorAll("#crossings li")].map(text),
    rows: [...document.querySelectorAll("#rows tr")].map((row) => [...row.children].map(text)),
    heard: [...document.querySelectorAll("#play input")].map((e) => e.getAttribute("aria-valuetext")),
    instead: [...document.querySelectorAll(".drawing")].map(text),
    hash: location.hash,
    csv: decodeURIComponent(document.getElementById("csv").href),
    drawn: [...document.querySelectorAll(".drawing canvas")].map((e) => e.toDataURL()),
  };
}

const [executable, profile, path, moves] = process.argv.slice(2);
const context = await browser(executable, profile), page = await context.newPage(), found = [];
await page.setViewportSize({ width: 820, height: 900 });
await page.goto(pathToFileURL(path).href, { waitUntil: "load" });
await page.waitForFunction(() => document.getElementById("says").textContent !== "");
found.push(await page.evaluate(said));
for (const [slider, key] of JSON.parse(moves)) {
  await page.focus(`#${slider}`);
  await page.keyboard.press(key);
  found.push(await page.evaluate(said));
}
await page.reload({ waitUntil: "load" }); // the address alone brings the sliders back
await page.waitForFunction(() => document.getElementById("rows").children.length > 0);
found.push(await page.evaluate(said));
await context.close();
console.log(JSON.stringify(found));
