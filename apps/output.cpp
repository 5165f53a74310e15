#include "apps/output.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace kdt::apps {

void prepare_standard_streams() {
  ::signal(SIGPIPE, SIG_IGN);
  // Read-only, so that writing to a stream that was closed fails.
  for (int fd = 0; fd <= 2; ++fd)
    if (::fcntl(fd, F_GETFD) < 0) ::open("/dev/null", O_RDONLY);
}

void write_out(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_error(ErrorCode::kIo, "cannot write to stdout: {}", std::strerror(errno));
    text.remove_prefix(static_cast<size_t>(n));
  }
}

}  // namespace kdt::apps
