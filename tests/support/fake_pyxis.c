/* A SPANK plugin with the options of pyxis that opsctl renders. Real mounts and a real chroot, without enroot: the image is
 * a directory with a root file system. Each task gets a mount namespace of its own. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

SPANK_PLUGIN(fake_pyxis, 1);

static char values[3][8192];
enum { IMAGE, MOUNTS, WORKDIR };

static int take(int number, const char *text, int remote)
{
	(void)remote;
	snprintf(values[number], sizeof values[number], "%s", text);
	return 0;
}

struct spank_option spank_options[] = {
	{"container-image", "IMAGE", "directory with a root file system", 1, IMAGE, take},
	{"container-mounts", "SRC:DST[:ro],...", "bind mounts", 1, MOUNTS, take},
	{"container-workdir", "PATH", "working directory in the container", 1, WORKDIR, take},
	SPANK_OPTIONS_TABLE_END
};

static int fail(const char *what, const char *path)
{
	slurm_error("fake pyxis: %s %s: %s", what, path, strerror(errno));
	return -1;
}

static void make_directories(char *path)
{
	for (char *end = path + 1; (end = strchr(end, '/')); *end++ = '/') {
		*end = 0;
		mkdir(path, 0755);
	}
	mkdir(path, 0755);
}

static int bind_one(const char *source, const char *target, int read_only)
{
	char path[8192];
	snprintf(path, sizeof path, "%s%s", values[IMAGE], target);
	make_directories(path);
	if (mount(source, path, NULL, MS_BIND | MS_REC, NULL))
		return fail("mount", path);
	if (read_only && mount(NULL, path, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL))
		return fail("remount", path);
	return 0;
}

int slurm_spank_task_init_privileged(spank_t spank, int count, char **arguments)
{
	char *rest = NULL;
	(void)spank, (void)count, (void)arguments;
	if (!*values[IMAGE])
		return 0;
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return fail("unshare", "/");
	if (bind_one("/proc", "/proc", 0) || bind_one("/dev", "/dev", 0))
		return -1;
	for (char *word = strtok_r(values[MOUNTS], ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
		char *target = strchr(word, ':');
		if (!target)
			return fail("mount without a target", word);
		*target++ = 0;
		char *flags = strchr(target, ':');
		if (flags)
			*flags++ = 0;
		if (bind_one(word, target, flags && !strcmp(flags, "ro")))
			return -1;
	}
	if (chroot(values[IMAGE]) || chdir(values[WORKDIR]))
		return fail("chroot", values[IMAGE]);
	return 0;
}
