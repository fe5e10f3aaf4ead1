/* The same as sockets.py, compiled: bench/cold_start.py builds it and has a shell script start it. */
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static double now_s(void) {
  struct timeval at;
  gettimeofday(&at, NULL);
  return at.tv_sec + at.tv_usec / 1e6;
}

int main(void) {
  int server = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(getenv("PORT")))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(server, (struct sockaddr *)&address, sizeof address) || listen(server, 64)) return 1;
  double accepted_s = 0;
  for (;;) {
    int connection = accept(server, NULL, NULL);
    if (accepted_s == 0) accepted_s = now_s();
    char request[65536], body[128], answer[256];
    while (recv(connection, request, sizeof request, 0) > 0) {
      int length = snprintf(body, sizeof body, "%s %.6f 0\n", getenv("EXEC_S"), accepted_s);
      length = snprintf(answer, sizeof answer, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", length, body);
      send(connection, answer, length, MSG_NOSIGNAL);
    }
    close(connection);
  }
}
