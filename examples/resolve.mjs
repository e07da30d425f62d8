#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
// Names addresses of a .NET process: node resolve.mjs PID ADDRESS[@NS]...
// ADDRESS: hexadecimal, with 0x. NS: CLOCK_MONOTONIC of the moment meant; without it, the present.
import { connect } from "node:net";

const [pid, ...words] = process.argv.slice(2);
const places = words.map((word) => word.split("@"));
const fail = (why) => { console.error(String(why)); process.exit(1); };
if (!/^\d+$/.test(pid) || !places.length) fail("usage: node resolve.mjs PID ADDRESS[@NS]...");
const path = process.env.CLRSYM_SOCKET ?? "/run/clrsym/query.sock";
const s = connect(path).setEncoding("utf8").on("end", () => fail("clrsymd has gone"));
s.on("error", ({ code }) => fail(`${path}: ${code} (is clrsymd running, and are you in group clrsym?)`));

const call = (method, parameters) => new Promise((resolve) => {
  let text = "";
  s.write(JSON.stringify({ method: `org.clrsym.Symbols.${method}`, parameters }) + "\0");
  s.removeAllListeners("data").on("data", (piece) => {
    if (!(text += piece).endsWith("\0")) return;
    const { error, parameters: answers } = JSON.parse(text.slice(0, -1));
    // the error's name says it; PermissionDenied: another user's process
    if (error) fail(`${method}: ${error.split(".").pop()} ${JSON.stringify(answers ?? {})}`);
    resolve(answers);
  });
});

// clrsymd names what it is attached to; this attach ends 60 s after the last question
await call("Attach", { pid: Number(pid), hold_s: 60, wait_ms: 20000 });
const answers = await call("Resolve", { pid: Number(pid), wait_ms: 500,
  addresses: places.map(([address]) => address), times: places.map(([, ns]) => ns ?? 0) });
places.forEach(([address], i) => {
  const method = answers.methods[answers.method[i]];
  console.log(address, method ? `${method.function}+0x${answers.offset[i].toString(16)}`
                              : `? (${answers.reason[i]})`);
});
s.destroy();
