#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
// Names addresses of a .NET process: node resolve.mjs PID ADDRESS[@NS]...
// ADDRESS: hexadecimal, with 0x. NS: CLOCK_MONOTONIC of the moment meant; without it, the present.
import { connect } from "node:net";

const [pid, ...words] = process.argv.slice(2);
const places = words.map((word) => word.split("@"));
const parameters = { pid: Number(pid), wait_ms: 500,
  addresses: places.map(([address]) => address), times: places.map(([, ns]) => ns ?? 0) };
const fail = (why) => { console.error(String(why)); process.exitCode = 1; };
const s = connect(process.env.CLRSYM_SOCKET ?? "/run/clrsym/query.sock").setEncoding("utf8");
let text = "";
s.write(JSON.stringify({ method: "org.clrsym.Symbols.Resolve", parameters }) + "\0");
s.on("error", fail).on("data", (piece) => (text += piece).endsWith("\0") && s.end());
s.on("end", () => text.endsWith("\0") || fail("clrsymd has gone")).on("close", () => {
  const { error, parameters: answers } = JSON.parse(text.slice(0, -1) || "{}");
  if (error) fail(`${error} ${JSON.stringify(answers)}`);
  else if (answers) places.forEach(([address], i) => {
    const method = answers.methods[answers.method[i]];
    console.log(address, method ? `${method.function}+0x${answers.offset[i].toString(16)}`
                                : `? (${answers.reason[i]})`);
  });
});
