// kdtree: one binary with subcommands. Exit status 0, 1 for an error, 2 for wrong usage, 130 after
// Ctrl-C. An error prints one line on stderr, complete in itself.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "apps/commands.h"
#include "apps/interrupt.h"
#include "apps/output.h"
#include "base/error.h"

namespace {

using namespace kdt::apps;

int run(const Command& command) {
  try {
    return command();
  } catch (const UsageError& error) {
    std::fprintf(stderr, "kdtree: %s\n", error.what());
    return 2;
  } catch (const Interrupted&) {
    return kInterruptedStatus;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "kdtree: out of memory\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kdtree: %s\n", error.what());
  }
  return 1;
}

int complain(const CLI::App& app, const CLI::ParseError& error, const std::string& first) {
  const auto chosen = app.get_subcommands();
  if (!chosen.empty())
    std::fprintf(stderr, "kdtree: %s (see kdtree %s --help)\n", error.what(),
                 chosen[0]->get_name().c_str());
  else if (first.empty() || first.starts_with('-'))
    std::fprintf(stderr, "kdtree: %s (see kdtree --help)\n", error.what());
  else
    std::fprintf(stderr, "kdtree: there is no command '%s' (see kdtree --help)\n", first.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  prepare_standard_streams();
  CLI::App app("kdtree: inference for Kimi K2 models with DDTree speculative decoding");
  app.require_subcommand(1);
  app.get_formatter()->column_width(26);
  app.footer(
      "'kdtree COMMAND --help' lists the flags of a command. A first try:\n"
      "  kdtree generate --model models/tiny-k2 --draft models/tiny-k2-dflash \\\n"
      "      --prompt 'def fibonacci(n):'\n");
  Command command;
  const auto add = [&](Command (*adder)(CLI::App&)) {
    // The chosen subcommand's callback leaves its command here.
    const size_t before = app.get_subcommands(nullptr).size();
    const Command chosen = adder(app);
    app.get_subcommands(nullptr)[before]->callback([&command, chosen] { command = chosen; });
  };
  add(add_generate);
  add(add_inspect);
  add(add_bench);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const auto chosen = app.get_subcommands();
    return run(
        [&] { return write_out(chosen.empty() ? app.help() : chosen[0]->help("kdtree")), 0; });
  } catch (const CLI::ParseError& error) {
    return complain(app, error, argc > 1 ? argv[1] : "");
  }
  install_interrupt_handler();
  return run(command);
}
