/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SAMPLER_H
#define SAMPLER_H

/* What the two halves of the sampler share. */

#define MAX_FRAMES 127 /* kernel.perf_event_max_stack: the kernel gives no more */

/* A process id belongs to a pid namespace. */
struct target {
	unsigned int pid;
	unsigned long long ns_dev, ns_ino; /* of /proc/self/ns/pid */
};

struct stack {
	unsigned long long time_ns; /* CLOCK_MONOTONIC */
	unsigned int tid;
	int n_bytes; /* of frames, leaf first; negative: an errno */
	unsigned long long frames[MAX_FRAMES];
};

#endif
