// Definitions by name on standard input; on standard output what AWS's own language service finds, by name.
const { getLanguageService, TextDocument } = require("amazon-states-language-service");
const definitions = JSON.parse(require("fs").readFileSync(0, "utf8"));
const service = getLanguageService({});
(async () => {
  const findings = {};
  for (const [name, definition] of Object.entries(definitions)) {
    const text = TextDocument.create(`${name}.asl.json`, "json", 1, JSON.stringify(definition, null, 1));
    const found = await service.doValidation(text, service.parseJSONDocument(text));
    if (found.length) findings[name] = found.map(({ message, range }) => `line ${range.start.line + 1}: ${message}`);
  }
  console.log(JSON.stringify(findings));
})();
