// Definitions by name on standard input; on standard output what asl-validator finds, by name.
const validate = require("asl-validator");
const definitions = JSON.parse(require("fs").readFileSync(0, "utf8"));
const findings = {};
for (const [name, definition] of Object.entries(definitions)) {
  const { isValid, errors } = validate(definition, { checkPaths: true, checkArn: true });
  if (!isValid) findings[name] = errors;
}
console.log(JSON.stringify(findings));
