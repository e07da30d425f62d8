/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * stacks: text in, addresses out. Finds the raw addresses in the text that profilers print, line by
 * line: what process they are of, at what time, and which bytes of the line a name may replace.
 *
 *   bpftrace   "\t7f.. 0x7f.. ([unknown])"   ustack(perf)
 *              "    0x7f.."                  ustack
 *              "7f.."                        ustack(raw), versions after 0.17
 *   perf       "comm pid/tid [cpu] secs.usecs: ..." and, below it,
 *              "\t   7f.. [unknown] (/path)" or the same at the end of the first line
 *   any other  0x7f.. between blanks or punctuation
 *
 * Names that are there already are left alone. The text is hostile: a comm or a path can hold
 * anything, line breaks too; at worst an address is taken for another one, or for none.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum stacks_kind {
	STACKS_OTHER,
	STACKS_SAMPLE,  /* the first line of a sample: pid, has_pid, ... have changed */
	STACKS_FRAME,   /* a line of a stack, with or without a name */
	STACKS_MAPPING, /* a line of perf script --show-mmap-events: stacks_get_mapping() */
};

enum stacks_clock {
	STACKS_CLOCK_UNKNOWN,
	STACKS_CLOCK_MONO,
	STACKS_CLOCK_OTHER,
};

enum stacks_form {
	STACKS_PERF,     /* "[unknown]": NAME+0x16 */
	STACKS_BPFTRACE, /* "0x7f..": NAME+22 */
	STACKS_UNKNOWN,  /* "0x7f.. ([unknown])": NAME+22 (MODULE) */
	STACKS_BARE,     /* an address somewhere in a line: NAME+0x16 */
};

struct stacks_address {
	size_t from, to; /* the bytes of the line that a name replaces */
	uint64_t addr;
	enum stacks_form form;
	bool caller; /* a return address */
	/* The file of perf's line (length 0: none) ... */
	const char *path;
	size_t path_len;
	/* ... and the address is an offset into it: so perf prints the frames of call chains. */
	bool is_offset;
};

/* State from line to line. All zero at the start. */
struct stacks {
	/* of the sample under way, if any; perf's only */
	bool in_sample;
	bool has_pid;  /* false: the line has no number, or could be read in two ways */
	bool pid_only; /* one number: a thread's, or with -F pid the process's */
	pid_t pid;
	uint64_t time; /* ns of perf's clock; 0: none */
	/* of the recording, told by perf script --header */
	enum stacks_clock clock;

	/* the line under way */
	const char *line;
	size_t len, at;
	enum stacks_kind kind;
	bool leaf;       /* its frame is the first of its stack, or of the user's part of it */
	bool was_kernel; /* it is a frame of the kernel */
	bool has_frame;
	struct stacks_address frame;
};

/* Begins a line, without its line break; it stays the caller's. */
enum stacks_kind stacks_line(struct stacks *s, const char *line, size_t len);
/* A line that was too long to be looked at: it ends stack and sample. */
void stacks_skip(struct stacks *s);
/* The next address of that line, in order; false: no more. */
bool stacks_next(struct stacks *s, struct stacks_address *a);

struct stacks_mapping {
	pid_t pid;
	uint64_t start, len, offset;
	const char *path;
	size_t path_len;
	bool executable;
};

/* Of a STACKS_MAPPING line. */
void stacks_get_mapping(const struct stacks *s, struct stacks_mapping *m);
