/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strict reading of requests. Written from the protocol's text and apart from src/diagipc, so
 * that an error made on one side is not made on the other.
 */
#include "tests/fakert/request.h"

#include <string.h>

#include "base/reader.h"

#define MAX_PROVIDERS 1000u

int request_is_known(uint16_t command, unsigned int major)
{
	switch (command) {
	case REQUEST_STOP_TRACING:
	case REQUEST_COLLECT_TRACING:
	case REQUEST_COLLECT_TRACING2: return 1;
	case REQUEST_PROCESS_INFO:
	case REQUEST_RESUME: return major >= 5;
	case REQUEST_PROCESS_INFO2: return major >= 6;
	case REQUEST_PROCESS_INFO3: return major >= 8;
	case REQUEST_COLLECT_TRACING3:
	case REQUEST_COLLECT_TRACING4: return major >= 9;
	case REQUEST_COLLECT_TRACING5: return major >= 10;
	case REQUEST_COLLECT_TRACING6: return major >= 11;
	default: return 0;
	}
}

struct string {
	const uint8_t *units;
	size_t n;
};

/* n counts the units without the final zero; 0 for the absent string. */
static const char *read_string(struct reader *r, struct string *s)
{
	uint32_t i, n = reader_u32(r);

	if (n > reader_left(r) / 2)
		return "string beyond the message";
	s->units = reader_bytes(r, 2 * (size_t)n);
	s->n = n ? n - 1 : 0;
	for (i = 0; i < n; i++) {
		int zero = !s->units[2 * i] && !s->units[2 * i + 1];

		if (zero != (i + 1 == n))
			return "string not ended by its only zero";
	}
	return NULL;
}

static const char *read_bool(struct reader *r, int *valuep)
{
	uint8_t v = reader_u8(r);

	*valuep = v;
	return v > 1 ? "bool neither 0 nor 1" : NULL;
}

static const char *read_filter(struct reader *r)
{
	const char *error;
	int enable;
	uint32_t n;

	error = read_bool(r, &enable);
	if (error)
		return error;
	n = reader_u32(r);
	if (n > reader_left(r) / 4)
		return "event ids beyond the message";
	if (enable && !n)
		return "filter that lets nothing through";
	reader_skip(r, 4 * (size_t)n);
	return NULL;
}

static const char *read_providers(struct reader *r, uint16_t command)
{
	struct string names[MAX_PROVIDERS], args;
	uint32_t i, j, n = reader_u32(r);
	const char *error;

	if (!n || n > MAX_PROVIDERS)
		return "number of providers";
	for (i = 0; i < n; i++) {
		reader_u64(r); /* keywords */
		if (reader_u32(r) > 5)
			return "level";
		error = read_string(r, &names[i]);
		if (error)
			return error;
		if (!names[i].n)
			return "provider without a name";
		for (j = 0; j < i; j++)
			if (names[j].n == names[i].n &&
			    !memcmp(names[j].units, names[i].units, 2 * names[i].n))
				return "provider named twice";
		error = read_string(r, &args);
		if (!error && command >= REQUEST_COLLECT_TRACING5)
			error = read_filter(r);
		if (error)
			return error;
	}
	return NULL;
}

static const char *read_session(struct reader *r, uint16_t command, struct request *request)
{
	const char *error = NULL;
	uint32_t mb;
	int flag = 1;

	if (command >= REQUEST_COLLECT_TRACING5 && reader_u32(r) != 0)
		return "session type not streaming";
	mb = reader_u32(r);
	if (!mb || mb > 65536)
		return "buffer size";
	if (reader_u32(r) != 1)
		return "format not nettrace";
	if (command >= REQUEST_COLLECT_TRACING4) {
		request->rundown_keywords = reader_u64(r);
	} else {
		if (command >= REQUEST_COLLECT_TRACING2)
			error = read_bool(r, &flag);
		request->rundown_keywords = flag != 0;
	}
	if (!error && command >= REQUEST_COLLECT_TRACING3)
		error = read_bool(r, &flag);
	if (!error)
		error = read_providers(r, command);
	if (!error && command >= REQUEST_COLLECT_TRACING6 && reader_u32(r) > 1)
		error = "buffer mode";
	return error;
}

const char *request_parse(uint16_t command, const uint8_t *payload, size_t size,
			  struct request *request)
{
	const char *error = NULL;
	struct reader r;

	reader_init(&r, payload, size);
	*request = (struct request){ .command = command };
	switch (command) {
	case REQUEST_STOP_TRACING: request->session_id = reader_u64(&r); break;
	case REQUEST_COLLECT_TRACING:
	case REQUEST_COLLECT_TRACING2:
	case REQUEST_COLLECT_TRACING3:
	case REQUEST_COLLECT_TRACING4:
	case REQUEST_COLLECT_TRACING5:
	case REQUEST_COLLECT_TRACING6: error = read_session(&r, command, request); break;
	default: break; /* no payload */
	}
	if (!error && r.bad)
		error = "payload too short";
	if (!error && reader_left(&r))
		error = "bytes after the payload";
	return error;
}
