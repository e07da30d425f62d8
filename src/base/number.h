/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Numbers as people type them. All of the text must be the number. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Decimal, at most max. */
bool parse_u64(const char *s, uint64_t max, uint64_t *vp);
/* Decimal with an optional k, M or G (binary), greater than 0. */
bool parse_size(const char *s, size_t *bytesp);
/* A process id. */
bool parse_pid(const char *s, pid_t *pidp);
