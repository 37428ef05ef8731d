// The first screen of pages, as PNGs: node shoot.mjs CHROMIUM FOLDER SHOTS; SHOTS: [{page, png, width, height, dark}, ...] as JSON.
import { pathToFileURL } from "node:url";
import { browser } from "./judge.mjs";

const [executable, profile, shots] = process.argv.slice(2);
const context = await browser(executable, profile), page = await context.newPage(), written = [];
for (const { page: path, png, width, height, dark } of JSON.parse(shots)) {
  await page.setViewportSize({ width, height });
  await page.emulateMedia({ colorScheme: dark ? "dark" : "light" });
  await page.goto(pathToFileURL(path).href, { waitUntil: "load" });
  await page.screenshot({ path: png });
  written.push(png);
}
await context.close();
console.log(JSON.stringify(written));
