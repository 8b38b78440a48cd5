// A worker, written from titanic/LANGUAGES.md: worker.mjs ENDPOINT SERVICE. It replies with its request's first frame in
// capitals, sends heartbeats also while it handles a request, and connects again when the server is gone.

import { setTimeout as pause } from "node:timers/promises";
import { Dealer } from "zeromq";

const [endpoint, service] = process.argv.slice(2);
const READY = 1, REQUEST = 2, FINAL = 4, HEARTBEAT = 5, DISCONNECT = 6;
const upper = async ([body]) => [String(body).toUpperCase()];

async function serve(handle) {
  const socket = new Dealer({ linger: 1000, receiveTimeout: 10_000 }); // so long a silence: the server is gone
  socket.connect(endpoint);
  let sent = Promise.resolve(), registered = false;
  const say = (command, ...frames) =>
    (sent = sent.then(() => socket.send(["MDPW02", Buffer.from([command]), ...frames])));
  const beat = setInterval(() => say(HEARTBEAT).catch(() => {}), 2500);
  try {
    await say(READY, service);
    for (;;) {
      const [, command, client, , ...body] = await socket.receive();
      if (command[0] === DISCONNECT) return registered;
      registered = true;
      if (command[0] !== REQUEST) continue;
      const reply = await handle(body).catch((error) => ["MDPE01", `500 ${error.message}`]);
      await say(FINAL, client, "", ...reply);
    }
  } catch {
    return registered;
  } finally {
    clearInterval(beat);
    socket.close();
  }
}

for (let wait = 1000; ; wait = Math.min(2 * wait, 32_000)) {
  if (await serve(upper)) wait = 1000;
  await pause(wait);
}
