// Standard output that never fails in silence.
#pragma once

#include <string_view>

namespace kdt::apps {

// Call first in main(): a closed standard stream cannot be mistaken for the next file opened, and a
// reader that goes away is an error of the next write, not a signal.
void prepare_standard_streams();

// Writes to stdout at once; throws kIo with the system's reason.
void write_out(std::string_view text);

}  // namespace kdt::apps
