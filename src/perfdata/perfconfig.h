/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The one answer that is wanted of perf's configuration: where its build-id cache is. */

/*
 * buildid.dir as perf itself would take it now, in *dirp (to be freed); NULL when it is not set.
 * Returns 0 or -ENOMEM.
 */
int perfconfig_buildid_dir(char **dirp);
