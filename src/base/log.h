/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The talk: one line a message on stderr, as "clrsymd: <text>".
 *
 * Text that comes from a target must be passed through escape_terminal() first. Lines
 * that a target or client can provoke go through a struct log_limit, which lets a burst
 * pass and then one line an interval, and counts what it kept back.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/util.h"

enum log_level {
	LOG_ERROR,
	LOG_WARN,
	LOG_INFO,
	LOG_DEBUG,
};

/* Under systemd (JOURNAL_STREAM names stderr) lines carry the <N> priority prefix. */
void log_init(const char *program, enum log_level level);
void log_line(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);

#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_DEBUG, __VA_ARGS__)

struct log_limit {
	uint64_t window_start_ns;
	uint32_t in_window;
	uint32_t dropped; /* since the last line that passed */
};

#define LOG_LIMIT_BURST     5u
#define LOG_LIMIT_WINDOW_NS 10000000000u

/* May a line pass now? *droppedp is how many were kept back since the last one. */
bool log_limit_pass(struct log_limit *limit, uint64_t now_ns, uint32_t *droppedp);
