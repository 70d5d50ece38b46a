/* Throws datagrams at the RoCEv2 port of an address: `garbage ADDRESS QPN COUNT`. Noise, cut packets, and whole ones with
 * every opcode for that QP, all without a valid ICRC. */
#include "faults.h"

int main(int argc, char **argv)
{
	CHECK(argc == 4);
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(4791)};
	uint32_t qpn = (uint32_t)strtoul(argv[2], NULL, 10);
	int fd = socket(AF_INET, SOCK_DGRAM, 0), sent = 0;
	unsigned char packet[9000];
	CHECK(fd >= 0 && inet_pton(AF_INET, argv[1], &to.sin_addr) == 1);
	srand(1);
	for (int n = 0; n < atoi(argv[3]); n++) {
		size_t len = (size_t)rand() % (n % 50 ? 300 : sizeof(packet));
		for (size_t i = 0; i < len; i++)
			packet[i] = (unsigned char)rand();
		if (n % 4) {
			/* A BTH: opcode, flags, P_Key, QP (the right one, QP 1, multicast, or anything), PSN. */
			uint32_t dest = n % 4 == 1 ? qpn : n % 4 == 2 ? 1 : (unsigned)rand() & 0xffffff;
			packet[0] = (unsigned char)n;
			packet[1] = 0x40;
			packet[2] = packet[3] = 0xff;
			packet[5] = (unsigned char)(dest >> 16);
			packet[6] = (unsigned char)(dest >> 8);
			packet[7] = (unsigned char)dest;
		}
		sent += sendto(fd, packet, len, 0, (void *)&to, sizeof(to)) >= 0;
	}
	say("sent %d", sent);
	return 0;
}
