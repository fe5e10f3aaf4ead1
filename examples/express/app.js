const express = require("express");

const app = express();
app.get("/greet/:name", (request, response) => response.send(`Hello, ${request.params.name}!\n`));
const server = app.listen(process.env.PORT, "127.0.0.1");
// The pod is asked to end: finish the requests that are being answered.
process.on("SIGTERM", () => server.close());
