/* Preloaded into a server that is to be met: when it listens for connections by librdmacm, the file that LISTENS_AT
 * names is there. From outside only the port can be seen, which is taken before anybody listens. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int rdma_listen(void *id, int backlog)
{
	/* Not RTLD_NEXT: a program may have loaded the library for a part of itself alone. */
	void *library = dlopen("librdmacm.so.1", RTLD_LAZY | RTLD_NOLOAD);
	int (*listen)(void *, int) = library ? (int (*)(void *, int))dlsym(library, "rdma_listen") : NULL;
	int ret = listen ? listen(id, backlog) : -1;
	const char *path = getenv("LISTENS_AT");
	int file = ret || !path ? -1 : open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

	if (file >= 0)
		close(file);
	return ret;
}
