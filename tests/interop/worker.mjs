// A worker for Node: node worker.mjs ENDPOINT SERVICE [SERVER.key NAME.key_secret]
//
// Replace `upper`, which gets the frames of a body, and returns those of the reply. If it throws, the request is tried
// again; the reply ["MDPE01", "500 why", "titanic:fatal"] fails it for good. It must not block Node's loop, which sends
// the heartbeats: compute in a thread of node:worker_threads. The broker sends the next request after the reply. After
// SIGTERM the worker finishes its request and leaves, so no attempt is lost. It connects again when the server was
// silent or restarted.

import { readFileSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";
import { Dealer } from "zeromq";

const upper = async ([body]) => [String(body).toUpperCase()];

const [endpoint, service, serverFile, secretFile] = process.argv.slice(2);
const READY = 1, REQUEST = 2, FINAL = 4, HEARTBEAT = 5, DISCONNECT = 6;
const half = (file, name) => readFileSync(file, "ascii").match(`${name} = "(.{40})"`)[1];
const keys = serverFile && {
  curveServerKey: half(serverFile, "public-key"),
  curvePublicKey: half(secretFile, "public-key"),
  curveSecretKey: half(secretFile, "secret-key"),
};
const longest = keys ? 2500 : 32_000; // permissions may change

const stop = new AbortController();
for (const name of ["SIGTERM", "SIGINT"]) process.once(name, () => stop.abort());

async function serve(handle) {
  const socket = new Dealer({ ...keys, linger: 1000, receiveTimeout: 10_000 }); // silence means a lost server
  socket.connect(endpoint);
  let sent = Promise.resolve(), job, registered = false;
  const say = (command, ...frames) => // one at a time; a closed socket drops it, and the request is delivered again
    (sent = sent.then(() => socket.send(["MDPW02", Buffer.from([command]), ...frames])).catch(() => {}));
  const leave = () => say(DISCONNECT).then(() => socket.close());
  const execute = async (client, body) => {
    const reply = await Promise.resolve(body).then(handle).catch((error) => ["MDPE01", `500 ${error?.message ?? error}`]);
    job = undefined;
    say(FINAL, client, "", ...reply);
    if (stop.signal.aborted) leave();
  };
  const stopped = () => job ?? leave();
  stop.signal.addEventListener("abort", stopped);
  const beat = setInterval(() => say(HEARTBEAT), 2500);
  try {
    say(READY, service);
    for (;;) {
      const [, command, client, , ...body] = await socket.receive();
      if (command[0] === DISCONNECT) break;
      registered = true;
      if (command[0] === REQUEST && !stop.signal.aborted) job = execute(client, body);
    }
  } catch {
    // silence, or closed
  }
  clearInterval(beat);
  stop.signal.removeEventListener("abort", stopped);
  socket.close();
  await job; // its reply is dropped
  return registered;
}

for (let wait = 1000; !stop.signal.aborted; wait = Math.min(2 * wait, longest)) {
  if (await serve(upper)) wait = 1000;
  await pause(wait, undefined, { signal: stop.signal }).catch(() => {});
}
