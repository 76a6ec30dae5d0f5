#include "nanotron/base/standard_streams.hpp"

#include <fcntl.h>

#include <cerrno>

namespace nanotron {

void open_standard_streams() {
  for (int number = 0; number < 3; ++number) {
    if (::fcntl(number, F_GETFD) >= 0 || errno != EBADF) continue;
    if (::open("/dev/null", O_RDWR) != number) return;  // the lowest that is free
  }
}

}  // namespace nanotron
