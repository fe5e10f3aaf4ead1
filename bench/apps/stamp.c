/* Sets EXEC_S to the time of its own start and executes its arguments; static, so that it runs in an image with nothing else. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

int main(int count, char **words) {
  struct timeval at;
  char text[32];
  gettimeofday(&at, NULL);
  snprintf(text, sizeof text, "%.6f", at.tv_sec + at.tv_usec / 1e6);
  setenv("EXEC_S", text, 1);
  if (count > 1) execv(words[1], words + 1);
  return 1;
}
