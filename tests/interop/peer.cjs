// The same as peer.c, for Node's `zeromq`: peer.cjs ENDPOINT DEALER|REQ|ROUTER IDENTITY HEAD ANSWER SIZE…

const zmq = require("zeromq");

const PATIENCE_MS = 90000;
const PATTERN = Buffer.from(Array.from({ length: 251 }, (_, at) => at));

const parse = (hex) => hex.split(",").slice(0, -1).map((one) => Buffer.from(one, "hex"));

async function say(socket, frames) {
  for (const until = Date.now() + PATIENCE_MS; ; await new Promise(setImmediate)) {
    try {
      return await socket.send(frames);
    } catch (error) {
      if (error.code !== "EHOSTUNREACH" || Date.now() > until) throw error;
    }
  }
}

async function main([endpoint, type, identity, head, answer, ...sizes]) {
  const { CURVE_PUBLIC: publicKey, CURVE_SECRET: secretKey, CURVE_SERVER: serverKey } = process.env;
  const socket = new { DEALER: zmq.Dealer, REQ: zmq.Request, ROUTER: zmq.Router }[type]({
    linger: 0,
    receiveTimeout: PATIENCE_MS,
    ...(type === "ROUTER" && { mandatory: true }),
    ...(identity && { routingId: identity }),
    ...(serverKey && { curvePublicKey: publicKey, curveSecretKey: secretKey, curveServerKey: serverKey }),
  });
  socket.connect(endpoint);
  for (const size of sizes.map(Number)) {
    const body = Buffer.alloc(size, PATTERN);
    await say(socket, [...parse(head), body]);
    const got = await socket.receive();
    const expected = [...parse(answer), body];
    if (got.length !== expected.length || !got.every((one, at) => one.equals(expected[at]))) {
      throw new Error(`another answer, of ${got.length} frames, to ${size} bytes`);
    }
  }
  socket.close();
  console.log(`libzmq ${zmq.version}`);
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(5);
});
