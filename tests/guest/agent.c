// Runs commands for whoever connects to its port: one connection, one command. A line comes in, what the command prints
// (errors too) goes out, and last the line "status N". If the connection is closed before, the command is killed with
// all that it started.
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORT 7778

static int ended[2];

static void on_child(int signal) {
  (void)signal;
  int saved = errno;
  if (write(ended[1], "", 1) < 0) {} // the pipe is full: it has been said
  errno = saved;
}

// One command, in a process of its own.
static void obey(int s) {
  char line[16384];
  size_t len = 0;
  while (len + 1 < sizeof line && read(s, line + len, 1) == 1 && line[len] != '\n') len++;
  line[len] = 0;
  if (pipe(ended)) return;
  signal(SIGCHLD, on_child);
  pid_t child = fork();
  if (child < 0) return;
  if (child == 0) {
    setpgid(0, 0);
    signal(SIGCHLD, SIG_DFL);
    dup2(s, 1);
    dup2(s, 2);
    if (!freopen("/dev/null", "r", stdin)) _exit(126);
    for (int fd = 3; fd < 20; fd++) close(fd);
    execl("/bin/sh", "sh", "-c", line, (char *)NULL);
    _exit(127);
  }
  setpgid(child, child); // whoever of the two is first
  struct pollfd fds[2] = {{.fd = ended[0], .events = POLLIN}, {.fd = s, .events = POLLIN}};
  int status = 0;
  for (;;) {
    if (poll(fds, 2, -1) < 0 && errno == EINTR) continue;
    if (waitpid(child, &status, WNOHANG) == child) break;
    if (!fds[1].revents) continue;
    kill(-child, SIGKILL);
    waitpid(child, &status, 0);
    return;
  }
  int number = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  dprintf(s, "status %d\n", number);
}

int main(void) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT)};
  int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 16)) return perror("agent"), 1;
  signal(SIGCHLD, SIG_IGN); // its own children are nobody's
  for (;;) {
    int s = accept(listener, NULL, NULL);
    if (s < 0) continue;
    if (fork() == 0) {
      close(listener);
      obey(s);
      _exit(0);
    }
    close(s);
  }
}
