// kdtree: one binary with subcommands. Exit status 0, 1 for an error, 2 for wrong usage, 130 after
// Ctrl-C. An error prints one line on stderr, complete in itself.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>

#include "apps/commands.h"
#include "base/error.h"

int main(int argc, char** argv) {
  using namespace kdt::apps;
  CLI::App app("kdtree: inference for Kimi K2 models with DDTree speculative decoding");
  app.require_subcommand(1);
  app.footer("Run 'kdtree COMMAND --help' for the flags of a command.");
  Command command;
  const auto add = [&](Command (*adder)(CLI::App&)) {
    // The chosen subcommand's callback leaves its command here.
    const size_t before = app.get_subcommands(nullptr).size();
    const Command run = adder(app);
    app.get_subcommands(nullptr)[before]->callback([&command, run] { command = run; });
  };
  add(add_generate);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "kdtree: %s (see kdtree --help)\n", error.what());
    return 2;
  }
  try {
    return command();
  } catch (const UsageError& error) {
    std::fprintf(stderr, "kdtree: %s\n", error.what());
    return 2;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "kdtree: out of memory\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kdtree: %s\n", error.what());
  }
  return 1;
}
