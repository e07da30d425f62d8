/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each allocation of building a request and reading a reply fails in turn: the answer is
 * -ENOMEM, nothing of the message or the structure is left, and nothing leaks.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/caps.h"
#include "diagipc/diagipc.h"

void torture_arm(unsigned long n);
unsigned long torture_count(void);

static void check(bool good, const char *what, unsigned long n)
{
	if (good)
		return;
	fprintf(stderr, "torture_diagipc: allocation %lu: %s\n", n, what);
	exit(EXIT_FAILURE);
}

/* A request whose buffer has to grow several times. */
static int make_request(unsigned long n)
{
	static const uint32_t ids[1000];
	static const struct diagipc_provider provider = { .name = "Microsoft-Windows-DotNETRuntime",
							  .keywords = 0x98,
							  .level = 5,
							  .event_ids = ids,
							  .n_event_ids = ARRAY_SIZE(ids) };
	static const union diagipc_args args = { .session = { 64, 0, &provider, 1 } };
	_cleanup_buf_ struct buf out;
	int r;

	buf_init(&out, CAP_IPC_MESSAGE);
	r = diagipc_request(&out, DIAGIPC_COLLECT_TRACING5, &args);
	check(r < 0 ? !out.len : out.len > sizeof(ids), "part of a request", n);
	return r;
}

/* ProcessInfo3 with six strings of one character. */
static int read_reply(unsigned long n)
{
	static const uint8_t text[] = { 2, 0, 0, 0, 'x', 0, 0, 0 };
	uint8_t bytes[20 + 4 + 8 + 16 + 6 * sizeof(text)] = "DOTNET_IPC_V1";
	_cleanup_diagipc_process_info_ struct diagipc_process_info info;
	struct diagipc_reply reply;
	size_t i;
	int r;

	bytes[14] = sizeof(bytes);
	bytes[16] = 0xff;
	bytes[20] = 1;
	for (i = 0; i < 6; i++)
		memcpy(bytes + 48 + i * sizeof(text), text, sizeof(text));
	check(!diagipc_reply_parse(bytes, sizeof(bytes), &reply), "reply", n);
	r = diagipc_parse_process_info(&reply, DIAGIPC_PROCESS_INFO3, &info);
	check(r ? !info.command_line && !info.rid : !strcmp(info.rid, "x"), "process info", n);
	return r;
}

static void torture(int (*scenario)(unsigned long n), unsigned long at_least)
{
	unsigned long n;
	int r;

	for (n = 1;; n++) {
		torture_arm(n);
		r = scenario(n);
		if (!r)
			break;
		check(r == -ENOMEM, "not -ENOMEM", n);
	}
	torture_arm(0);
	/* as many failures as there are allocations: none was passed over */
	check(!scenario(n), "fails unarmed", n);
	check(n - 1 >= at_least, "fewer allocations than expected", n);
}

int main(void)
{
	torture(make_request, 2);
	torture(read_reply, 6);
	return EXIT_SUCCESS;
}
