// The origin of echo.py, by the parser of Node.
const http = require("http");
http
  .createServer((request, response) => {
    const pieces = [];
    request.on("data", (piece) => pieces.push(piece));
    request.on("end", () => {
      const read = [request.method, request.url, Buffer.concat(pieces).toString("hex")];
      response.writeHead(200, { "X-Echo": Buffer.from(JSON.stringify(read)).toString("hex"), "Content-Length": 0 });
      response.end();
    });
  })
  .listen(Number(process.argv[2]), "127.0.0.1");
