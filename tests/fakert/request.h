/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The requests of a diagnostic port, read more strictly than any runtime reads them: what
 * some runtime would ignore, refuse or die of is an error here.
 */

#include <stddef.h>
#include <stdint.h>

#define REQUEST_HEADER_SIZE 20u

enum request_command {
	REQUEST_STOP_TRACING = 0x0201,
	REQUEST_COLLECT_TRACING = 0x0202,
	REQUEST_COLLECT_TRACING2 = 0x0203,
	REQUEST_COLLECT_TRACING3 = 0x0204,
	REQUEST_COLLECT_TRACING4 = 0x0205,
	REQUEST_COLLECT_TRACING5 = 0x0206,
	REQUEST_COLLECT_TRACING6 = 0x0207,
	REQUEST_PROCESS_INFO = 0x0400,
	REQUEST_RESUME = 0x0401,
	REQUEST_PROCESS_INFO2 = 0x0404,
	REQUEST_PROCESS_INFO3 = 0x0408,
};

struct request {
	uint16_t command;
	uint64_t session_id;       /* StopTracing */
	uint64_t rundown_keywords; /* CollectTracing*: 1 where the command has only a flag */
};

/* Does a runtime of this version know the command? */
int request_is_known(uint16_t command, unsigned int major);
/* NULL, or what is wrong with the payload. */
const char *request_parse(uint16_t command, const uint8_t *payload, size_t size,
			  struct request *request);
