/* What `rem verbs` shows below /sys and /dev against what the libraries answer, for every device. */
#include <inttypes.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <infiniband/verbs.h>

/* Of the private part of libibverbs, but there for programs. */
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);

static int wrong;

static void same(const char *device, const char *what, const char *shown, const char *answered)
{
	if (strcmp(shown, answered)) {
		printf("%s: %s is \"%s\" below /sys, and \"%s\" to the library\n", device, what, shown, answered);
		wrong = 1;
	}
}

static const char *file(const char *dir, const char *name)
{
	static char text[256];
	if (ibv_read_sysfs_file(dir, name, text, sizeof(text)) < 0)
		return "nothing";
	return text;
}

static const char *words(const uint8_t *bytes, int len)
{
	static char text[64];
	char *at = text;
	for (int i = 0; i < len; i += 2)
		at += sprintf(at, "%s%02x%02x", i ? ":" : "", bytes[i], bytes[i + 1]);
	return text;
}

static void port(struct ibv_context *ctx, const char *name, const char *dir)
{
	static const struct { int code; double lane; } speeds[] = {
		{1, 2.5}, {2, 5}, {4, 10}, {8, 10}, {16, 14}, {32, 25}, {64, 50}, {128, 100}};
	struct ibv_port_attr attr;
	char text[64], path[64], want[64];
	double rate = 0, lane = 0;
	int lanes = 0;

	if (ibv_query_port(ctx, 1, &attr))
		exit(1);
	snprintf(text, sizeof(text), "%d: ACTIVE", attr.state);
	same(name, "state", file(dir, "ports/1/state"), text);
	snprintf(text, sizeof(text), "%d: LinkUp", attr.phys_state);
	same(name, "phys_state", file(dir, "ports/1/phys_state"), text);
	same(name, "link_layer", file(dir, "ports/1/link_layer"),
	     attr.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "another");
	sscanf(file(dir, "ports/1/rate"), "%lf Gb/sec (%dX", &rate, &lanes);
	for (size_t i = 0; i < sizeof(speeds) / sizeof(*speeds); i++)
		if (speeds[i].code == attr.active_speed)
			lane = speeds[i].lane;
	snprintf(text, sizeof(text), "%g in %dX", rate, lanes);
	snprintf(want, sizeof(want), "%g in %dX", lane * (attr.active_width == 2 ? 4 : 1), attr.active_width == 2 ? 4 : 1);
	same(name, "rate", text, want);
	snprintf(text, sizeof(text), "0x%08x", attr.port_cap_flags & 0x10000);
	same(name, "cap_mask", file(dir, "ports/1/cap_mask"), text);
	same(name, "pkeys", file(dir, "ports/1/pkeys/0"), "0xffff");
	for (int i = 0; i < attr.gid_tbl_len; i++) {
		struct ibv_gid_entry entry;
		union ibv_gid gid;
		char interface[IF_NAMESIZE] = "";
		int known = !ibv_query_gid_ex(ctx, 1, i, &entry, 0);

		if (ibv_query_gid(ctx, 1, i, &gid))
			exit(1);
		snprintf(path, sizeof(path), "ports/1/gids/%d", i);
		same(name, path, file(dir, path), words(gid.raw, 16));
		snprintf(path, sizeof(path), "ports/1/gid_attrs/types/%d", i);
		same(name, path, file(dir, path), known ? "RoCE v2" : "nothing");
		snprintf(path, sizeof(path), "ports/1/gid_attrs/ndevs/%d", i);
		same(name, path, file(dir, path), known ? if_indextoname(entry.ndev_ifindex, interface) : "nothing");
	}
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	if (!list || !*list)
		return 1;
	for (struct ibv_device **at = list; *at; at++) {
		struct ibv_context *ctx = ibv_open_device(*at);
		const char *name = ibv_get_device_name(*at), *dir = (*at)->ibdev_path;
		uint64_t guid = ibv_get_device_guid(*at);
		struct ibv_device_attr attr;
		char path[300];
		struct stat node;

		if (!ctx || ibv_query_device(ctx, &attr))
			return 1;
		same(name, "node_guid", file(dir, "node_guid"), words((uint8_t *)&guid, 8));
		same(name, "sys_image_guid", file(dir, "sys_image_guid"), words((uint8_t *)&attr.sys_image_guid, 8));
		same(name, "fw_ver", file(dir, "fw_ver"), attr.fw_ver);
		same(name, "node_type", file(dir, "node_type"), "1: CA");
		same(name, "ibdev", file((*at)->dev_path, "ibdev"), name);
		snprintf(path, sizeof(path), "/dev/infiniband/%s", (*at)->dev_name);
		if (stat(path, &node) || !S_ISCHR(node.st_mode)) {
			printf("%s: %s is no character device\n", name, path);
			wrong = 1;
		}
		port(ctx, name, dir);
		ibv_close_device(ctx);
		printf("%s looked at\n", name);
	}
	return wrong;
}
