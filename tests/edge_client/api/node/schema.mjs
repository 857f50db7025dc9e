// A JSON schema through the official Node SDK: `node schema.mjs URL TOKEN`. Prints one JSON object.
import OpenAI from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const openai = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const schema = {
  type: "object",
  properties: { name: { type: "string", maxLength: 8 }, age: { type: "integer", maximum: 99 } },
  required: ["name", "age"],
  additionalProperties: false,
};

const found = await openai.chat.completions.create({
  model: "default",
  messages: [{ role: "user", content: "person = " }],
  temperature: 0.8,
  seed: 2,
  max_tokens: 200,
  logprobs: true,
  top_logprobs: 1,
  response_format: { type: "json_schema", json_schema: { name: "person", strict: true, schema } },
});
const { content } = found.choices[0].message;
const refused = await openai.chat.completions
  .create({
    model: "default",
    messages: [{ role: "user", content: "person = " }],
    response_format: { type: "json_schema", json_schema: { name: "person", schema: { type: "nonsense" } } },
  })
  .catch((error) => ({ kind: error.constructor.name, param: error.param }));
console.log(
  JSON.stringify({
    keys: Object.keys(JSON.parse(content)),
    reason: found.choices[0].finish_reason,
    spelled: found.choices[0].logprobs.content.map((each) => each.token).join("").startsWith(content),
    refused,
  }),
);
