// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
/*
 * Takes the user stack of one process at every tick of a perf event, with its time, into a ring
 * buffer. The time is what makes the difference: code moves, and an address without a time may be
 * named after what came there later.
 */
#include <linux/bpf.h>
#include <linux/bpf_perf_event.h>

#include <bpf/bpf_helpers.h>

#include "sampler.h"

/* Set before loading; alone in its section, so that the other half can fill it in as a whole. */
const volatile struct target target SEC(".rodata.target");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} stacks SEC(".maps");

SEC("perf_event")
int take_stack(struct bpf_perf_event_data *ctx)
{
	struct bpf_pidns_info id = {};
	struct stack *s;

	if (bpf_get_ns_current_pid_tgid(target.ns_dev, target.ns_ino, &id, sizeof(id)) ||
	    id.tgid != target.pid)
		return 0;
	s = bpf_ringbuf_reserve(&stacks, sizeof(*s), 0);
	if (!s)
		return 0; /* no room: more stacks than anyone takes */
	s->time_ns = bpf_ktime_get_ns();
	s->tid = id.pid;
	s->n_bytes = bpf_get_stack(ctx, s->frames, sizeof(s->frames), BPF_F_USER_STACK);
	bpf_ringbuf_submit(s, 0);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
