/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One payload of a hostile runtime. Byte 0 is the provider, bytes 1 and 2 the event id, byte 3 the
 * version; the payload follows.
 *
 * Held besides memory safety: no failure of our own; every string is there, terminated and
 * valid UTF-8; arrays lie within the payload; a payload with more behind it gives the same.
 */
#include <string.h>

#include "clr/clr.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool good)
{
	if (!good)
		abort();
}

/* Well-formed UTF-8: shortest forms only, no surrogates, nothing past U+10FFFF. */
static void check_string(const struct clr_string *s)
{
	const uint8_t *p = (const uint8_t *)s->s;
	const uint8_t *end = p + s->len;

	check(strlen(s->s) == s->len);
	while (p < end) {
		uint32_t c = *p++, min = 0;
		int n = 0;

		if (c >= 0xf0) {
			check(c < 0xf8);
			c &= 0x07, n = 3, min = 0x10000;
		} else if (c >= 0xe0) {
			c &= 0x0f, n = 2, min = 0x800;
		} else if (c >= 0x80) {
			check(c >= 0xc0);
			c &= 0x1f, n = 1, min = 0x80;
		}
		for (; n; n--) {
			check(p < end && (*p & 0xc0) == 0x80);
			c = c << 6 | (*p++ & 0x3f);
		}
		check(c >= min && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff));
	}
}

static void check_bytes(const uint8_t *p, size_t n, const uint8_t *payload, size_t size)
{
	check(p >= payload && (size_t)(p - payload) <= size);
	check(n <= size - (size_t)(p - payload));
}

static void check_event(const struct clr_event *e, const uint8_t *payload, size_t size)
{
	struct clr_text text;
	size_t i;

	switch (e->kind) {
	case CLR_METHOD_LOAD:
	case CLR_METHOD_UNLOAD:
	case CLR_METHOD_RUNDOWN:
		check_string(&e->method.ns);
		check_string(&e->method.name);
		check_string(&e->method.sig);
		check(*clr_tier_text(e->method.flags));
		break;
	case CLR_METHOD_JIT_STARTED:
		check_string(&e->jit_started.ns);
		check_string(&e->jit_started.name);
		check_string(&e->jit_started.sig);
		break;
	case CLR_METHOD_DETAILS:
		check_bytes(e->details.type_params, 8 * (size_t)e->details.n_type_params, payload,
			    size);
		break;
	case CLR_METHOD_INLINING:
	case CLR_METHOD_TAIL_CALL:
		for (i = 0; i < 3; i++) {
			check_string(&e->tracing.ns[i]);
			check_string(&e->tracing.name[i]);
			check_string(&e->tracing.sig[i]);
		}
		check_string(&e->tracing.reason);
		check(*clr_tail_call_text(&text, e->tracing.tail_call_type));
		break;
	case CLR_R2R_ENTRY_POINT:
	case CLR_R2R_ENTRY_POINT_START:
		check_string(&e->entry_point.ns);
		check_string(&e->entry_point.name);
		check_string(&e->entry_point.sig);
		break;
	case CLR_IL_MAP:
		check_bytes(e->il_map.il_offsets, 4 * (size_t)e->il_map.n, payload, size);
		check_bytes(e->il_map.native_offsets, 4 * (size_t)e->il_map.n, payload, size);
		break;
	case CLR_DOMAIN_MODULE:
	case CLR_MODULE:
		check_string(&e->module.il_path);
		check_string(&e->module.native_path);
		check_string(&e->module.pdb_path);
		check_string(&e->module.native_pdb_path);
		check_string(&e->module.native_build_id);
		check(*clr_flags_text(&text, CLR_FLAGS_MODULE, e->module.flags));
		check(strlen(clr_guid_text(&text, &e->module.pdb_guid)) == 36);
		break;
	case CLR_ASSEMBLY:
		check_string(&e->assembly.name);
		check(*clr_flags_text(&text, CLR_FLAGS_ASSEMBLY, e->assembly.flags));
		break;
	case CLR_APP_DOMAIN: check_string(&e->app_domain.name); break;
	case CLR_RUNTIME_INFO:
		check_string(&e->runtime.command_line);
		check_string(&e->runtime.dll_path);
		check(*clr_flags_text(&text, CLR_FLAGS_STARTUP, e->runtime.startup_flags));
		break;
	case CLR_CHECKPOINT: check_string(&e->checkpoint.name); break;
	case CLR_PROCESS_INFO:
		check_string(&e->process.command_line);
		check_string(&e->process.os);
		check_string(&e->process.arch);
		break;
	default: break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const providers[] = {
		CLR_PROVIDER_RUNTIME,
		CLR_PROVIDER_RUNDOWN,
		CLR_PROVIDER_EVENTPIPE,
	};
	const struct clr_layout *layout;
	struct clr_decoder decoder;
	struct clr_event event;
	const uint8_t *payload;
	size_t payload_size;
	int r;

	if (size < 5)
		return 0;
	layout = clr_layout_find(providers[data[0] % ARRAY_SIZE(providers)],
				 (uint32_t)data[1] | (uint32_t)data[2] << 8);
	payload = data + 4;
	payload_size = size - 4;
	clr_decoder_init(&decoder);
	r = clr_decode(&decoder, layout, data[3], payload, payload_size, &event);
	check(r >= 0);
	check((r == CLR_E_UNKNOWN) == !layout);
	if (!r) {
		check(event.kind == clr_layout_kind(layout));
		check_event(&event, payload, payload_size);
		/* cut at the end it cannot become good again, and a longer one stays good */
		r = clr_decode(&decoder, layout, data[3], payload, payload_size - 1, &event);
		check(!r || r == CLR_E_SHORT);
	}
	clr_decoder_deinit(&decoder);
	return 0;
}
