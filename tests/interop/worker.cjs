// The frames of a worker with several services and slots: worker.cjs ENDPOINT SLOTS SERVICE LIMIT:SERVICE…
// It neither connects again nor notices silence: worker.mjs does.
//
// It replies with the name of the service and the request's first frame in capitals; a request `wait` takes until
// another one, `go`, comes, or until SIGTERM, which ends the worker: it returns what still comes. It prints `registered`
// when the broker takes it, and `waits` when it has such a request.

const zmq = require("zeromq");

const HEARTBEAT_MS = 500;
const EMPTY = Buffer.alloc(0);
const READY = 1, FINAL = 4, HEARTBEAT = 5, DISCONNECT = 6, REQUEST = 9, SLOTS = 10;

async function main([endpoint, slots, service, ...others]) {
  const socket = new zmq.Dealer({ linger: 1000 });
  const inHand = new Set();
  const waiting = [], queue = [];
  let leaving = false, sending = false;

  const say = async (command, ...frames) => {
    queue.push(["MDPW02", Buffer.from([command]), ...frames]);
    if (sending) return;
    sending = true;
    while (queue.length) await socket.send(queue.shift());
    sending = false;
    if (leaving && !inHand.size) {
      leaving = false;
      await socket.send(["MDPW02", Buffer.from([DISCONNECT])]);
      socket.close();
    }
  };

  const finish = (client, reply) => {
    inHand.delete(client.toString("hex"));
    return say(FINAL, client, EMPTY, ...reply);
  };

  socket.connect(endpoint);
  const words = ["titanic:1", `titanic:slots=${slots}`, ...others.map((one) => `titanic:service=${one}`)];
  await say(READY, service, ...words);
  const beat = setInterval(() => say(HEARTBEAT), HEARTBEAT_MS);
  process.on("SIGTERM", () => {
    leaving = true;
    say(SLOTS, "0");
    waiting.splice(0).forEach((go) => go());
  });
  let registered = false;
  for await (const [, command, client, , name, ...body] of socket) {
    if (command[0] === HEARTBEAT && !registered) {
      registered = true;
      console.log("registered");
    } else if (command[0] === DISCONNECT) {
      break;
    } else if (command[0] === REQUEST && leaving) {
      say(SLOTS, "0", client);
    } else if (command[0] === REQUEST) {
      inHand.add(client.toString("hex"));
      const reply = [name, body[0].toString().toUpperCase()];
      if (body[0].toString() === "wait") {
        waiting.push(() => finish(client, reply));
        console.log("waits");
        continue;
      }
      finish(client, reply);
      if (body[0].toString() === "go") waiting.splice(0).forEach((go) => go());
    }
  }
  clearInterval(beat);
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(5);
});
