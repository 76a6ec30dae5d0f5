#include "command_line.hpp"

#include <cmath>

#include "../shared/command_line.hpp"

namespace nanotron::apps {
namespace {

const Program program{.name = "nanotron_generate",
                      .summary = "Continues a prompt with the model of a checkpoint",
                      .example = "mpirun -np 2 nanotron_generate --checkpoint run/checkpoints --prompt text",
                      .notes =
                          "The model is sharded over all ranks; the number of ranks does not change the samples.\n"
                          "Text goes to stdout, speed to stderr.\n",
                      .exit_codes = {{ExitCode::ok, "finished"},
                                     {ExitCode::deck_error, "the command line is wrong"},
                                     {ExitCode::data_error, "checkpoint or token file damaged"},
                                     {ExitCode::numerics_error, "the numbers are not finite"},
                                     {ExitCode::system_error, "the system failed"}}};

constexpr int max_tokens = 10'000'000;
constexpr int max_samples = 100'000;

void add_options(CLI::App& app, GenerateOptions& o) {
  app.add_option("--checkpoint", o.checkpoint, "a step folder, or a folder of them (its newest valid one)")
      ->type_name(folder_value)
      ->required();
  app.add_option("--tokens-file,--token-file", o.tokens_file,
                 "token file whose /vocabulary turns text into ids and back (default: data%path of the "
                 "checkpoint's deck, if it exists)")
      ->type_name(file_value);
  auto* const prompt = app.add_option("--prompt", o.prompt, "text to continue");
  app.add_option("--prompt-ids", o.prompt_ids, "prompt as token ids: 1,2,3 (no prompt: begin with bos, else eos)")
      ->delimiter(',')
      ->excludes(prompt);
  app.add_option("--max-new-tokens", o.new_tokens, "maximum number of new tokens (default: as many as fit, up to 256)")
      ->check(CLI::Range(1, max_tokens));
  app.add_option("--context", o.context,
                 "maximum tokens of prompt plus continuation (default: the sequence length of "
                 "training, if the checkpoint has it)")
      ->check(CLI::Range(1, max_tokens));
  app.add_option("--samples", o.samples, "number of continuations")
      ->check(CLI::Range(1, max_samples))
      ->capture_default_str();
  app.add_option("--temperature", o.sampling.temperature, "0: always the most likely token")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--top-k", o.sampling.top_k, "sample from the k most likely tokens; 0: from all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--top-p", o.sampling.top_p, "sample from the most likely tokens that reach this probability together")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--seed", o.sampling.seed, "of the samples")->capture_default_str();
  app.add_option("--eos", o.eos, "token id that ends a text; -1: none (default: that of the token file)");
  app.add_option("--compute", o.compute, "type to compute in (default: as the parameters are stored)")
      ->transform(scalar_type());
  app.add_flag("--ids", o.ids, "print the new token ids, one line per sample, instead of text");
}

}  // namespace

std::optional<GenerateOptions> parse_generate_options(int argc, char** argv, bool is_writer) {
  GenerateOptions options;
  CLI::App app(description(program), program.name);
  add_options(app, options);
  if (!parse(app, program, argc, argv, is_writer)) return std::nullopt;
  if (std::isnan(options.sampling.temperature) || std::isnan(options.sampling.top_p)) {
    fail(ExitCode::deck_error,
         {.what = "--temperature and --top-p must be numbers", .change = "see nanotron_generate --help"});
  }
  return options;
}

}  // namespace nanotron::apps
