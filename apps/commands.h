// The subcommands of `kdtree`. Each adds its flags to the command line and runs when chosen.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>

namespace kdt::apps {

// A flag combination that makes no sense: exit status 2.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Adds the subcommand to `app`; returns what runs it, giving the exit status.
using Command = std::function<int()>;
Command add_generate(CLI::App& app);

}  // namespace kdt::apps
