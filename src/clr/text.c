/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spellings of flags, tiers and GUIDs. They are TraceEvent's, so that what we print of a
 * stream can be compared with it line by line.
 */
#include <inttypes.h>
#include <string.h>

#include "clr/clr.h"

struct flag {
	uint32_t bit;
	const char *name;
};

static const struct flag module_flags[] = {
	{ 0x1, "DomainNeutral" },
	{ 0x2, "Native" },
	{ 0x4, "Dynamic" },
	{ 0x8, "Manifest" },
	{ 0x10, "IbcOptimized" },
	{ 0x20, "ReadyToRunModule" },
	{ 0x40, "PartialReadyToRunModule" },
	{ 0, NULL },
};

static const struct flag assembly_flags[] = {
	{ 0x1, "DomainNeutral" }, { 0x2, "Dynamic" },     { 0x4, "Native" },
	{ 0x8, "Collectible" },   { 0x10, "ReadyToRun" }, { 0, NULL },
};

static const struct flag app_domain_flags[] = {
	{ 0x1, "Default" },
	{ 0x2, "Executable" },
	{ 0x4, "Shared" },
	{ 0, NULL },
};

static const struct flag startup_flags[] = {
	{ 0x1, "CONCURRENT_GC" },
	{ 0x2, "LOADER_OPTIMIZATION_SINGLE_DOMAIN" },
	{ 0x4, "LOADER_OPTIMIZATION_MULTI_DOMAIN" },
	{ 0x10, "LOADER_SAFEMODE" },
	{ 0x100, "LOADER_SETPREFERENCE" },
	{ 0x1000, "SERVER_GC" },
	{ 0x2000, "HOARD_GC_VM" },
	{ 0x4000, "SINGLE_VERSION_HOSTING_INTERFACE" },
	{ 0x10000, "LEGACY_IMPERSONATION" },
	{ 0x20000, "DISABLE_COMMITTHREADSTACK" },
	{ 0x40000, "ALWAYSFLOW_IMPERSONATION" },
	{ 0x80000, "TRIM_GC_COMMIT" },
	{ 0x100000, "ETW" },
	{ 0x200000, "SERVER_BUILD" },
	{ 0x400000, "ARM" },
	{ 0, NULL },
};

static const struct flag startup_modes[] = {
	{ 0x1, "ManagedExe" },   { 0x2, "HostedClr" }, { 0x4, "IjwDll" },
	{ 0x8, "ComActivated" }, { 0x10, "Other" },    { 0, NULL },
};

static const struct flag skus[] = {
	{ 0x1, "DesktopClr" },
	{ 0x2, "CoreClr" },
	{ 0x4, "Mono" },
	{ 0, NULL },
};

static const struct flag tiered_settings_flags[] = {
	{ 0x1, "QuickJit" },  { 0x2, "QuickJitForLoops" },
	{ 0x4, "TieredPGO" }, { 0x8, "ReadyToRun" },
	{ 0, NULL },
};

static const struct flag thread_flags[] = {
	{ 0x1, "GCSpecial" },
	{ 0x2, "Finalizer" },
	{ 0x4, "ThreadPoolWorker" },
	{ 0, NULL },
};

static const struct flag *const flag_sets[] = {
	[CLR_FLAGS_MODULE] = module_flags,
	[CLR_FLAGS_ASSEMBLY] = assembly_flags,
	[CLR_FLAGS_APP_DOMAIN] = app_domain_flags,
	[CLR_FLAGS_STARTUP] = startup_flags,
	[CLR_FLAGS_STARTUP_MODE] = startup_modes,
	[CLR_FLAGS_SKU] = skus,
	[CLR_FLAGS_TIERED_SETTINGS] = tiered_settings_flags,
	[CLR_FLAGS_THREAD] = thread_flags,
};

const char *clr_flags_text(struct clr_text *text, enum clr_flag_set set, uint32_t value)
{
	const struct flag *flag;
	uint32_t left = value;
	size_t n = 0;

	if (!value)
		return "None";
	for (flag = flag_sets[set]; flag->name; flag++) {
		if (!(value & flag->bit))
			continue;
		left &= ~flag->bit;
		n += (size_t)snprintf(text->s + n, sizeof(text->s) - n, "%s%s", n ? ", " : "",
				      flag->name);
	}
	if (left && set == CLR_FLAGS_TIERED_SETTINGS)
		snprintf(text->s, sizeof(text->s), "%" PRIu32, value);
	else if (left)
		snprintf(text->s, sizeof(text->s), "%" PRId32, (int32_t)value);
	return text->s;
}

const char *clr_tail_call_text(struct clr_text *text, uint32_t tail_call_type)
{
	static const char *const names[] = {
		"OptimizedTailCall",
		"RecursiveLoop",
		"HelperAssistedTailCall",
	};

	if (tail_call_type < ARRAY_SIZE(names))
		return names[tail_call_type];
	if (tail_call_type == UINT32_MAX)
		return "Unknown";
	snprintf(text->s, sizeof(text->s), "%" PRId32, (int32_t)tail_call_type);
	return text->s;
}

const char *clr_tier_text(uint32_t method_flags)
{
	static const char *const names[] = {
		"Unknown",
		"MinOptJitted",
		"Optimized",
		"QuickJitted",
		"OptimizedTier1",
		"OptimizedTier1OSR",
		"QuickJittedInstrumented",
		"OptimizedTier1Instrumented",
	};

	if (!(method_flags & CLR_METHOD_JITTED))
		return names[0];
	return names[method_flags >> CLR_METHOD_TIER_SHIFT & CLR_METHOD_TIER_MASK];
}

const char *clr_guid_text(struct clr_text *text, const struct clr_guid *guid)
{
	/* the first three groups are little-endian numbers */
	static const uint8_t order[] = { 3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15 };
	size_t n = 0, i;

	for (i = 0; i < ARRAY_SIZE(order); i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			text->s[n++] = '-';
		n += (size_t)snprintf(text->s + n, sizeof(text->s) - n, "%02x",
				      guid->bytes[order[i]]);
	}
	return text->s;
}
