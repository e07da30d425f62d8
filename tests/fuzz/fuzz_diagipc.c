/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replies of a hostile runtime. The first byte chooses which request was asked.
 *
 * Held besides memory safety: a prefix of a reply is "read on" or "malformed", never another
 * answer; and what is accepted is inside the bytes and can be used.
 */
#include <string.h>

#include "diagipc/diagipc.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool good)
{
	if (!good)
		abort();
}

static void check_process_info(const struct diagipc_reply *reply, enum diagipc_command command)
{
	_cleanup_diagipc_process_info_ struct diagipc_process_info info;
	int r = diagipc_parse_process_info(reply, command, &info);

	if (r) {
		check(!info.command_line && !info.rid);
		return;
	}
	check(strlen(info.command_line) + strlen(info.os) + strlen(info.arch) <= 3 * 65535);
	check(!info.version_text == (command == DIAGIPC_PROCESS_INFO));
	check(!info.rid == (command != DIAGIPC_PROCESS_INFO3));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const enum diagipc_command commands[] = { DIAGIPC_PROCESS_INFO,
							 DIAGIPC_PROCESS_INFO2,
							 DIAGIPC_PROCESS_INFO3 };
	struct diagipc_reply reply, prefix;
	uint64_t id;
	size_t cut;
	int r;

	if (size < 1)
		return 0;
	r = diagipc_reply_parse(data + 1, size - 1, &reply);
	for (cut = 0; cut < size - 1; cut += 1 + cut / 32) {
		int p = diagipc_reply_parse(data + 1, cut, &prefix);

		check(p == r || p == DIAGIPC_E_MORE);
		check(p == DIAGIPC_E_MORE || p == DIAGIPC_E_MALFORMED || cut >= reply.size);
	}
	if (r == DIAGIPC_E_REFUSED)
		check(diagipc_hresult_text(reply.hresult)[0]);
	if (r && r != DIAGIPC_E_REFUSED)
		return 0;

	check(reply.size <= size - 1 && reply.payload >= data &&
	      reply.payload + reply.payload_size == data + 1 + reply.size);
	if (!diagipc_parse_session_id(&reply, &id))
		check(id != 0);
	check_process_info(&reply, commands[data[0] % ARRAY_SIZE(commands)]);
	return 0;
}
