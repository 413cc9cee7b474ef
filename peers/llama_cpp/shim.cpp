// llama.cpp behind the shim protocol: token ids in, token ids out, one JSON object a line.
//
// Requests come on standard input, answers go to standard output, the log of the engine to standard error. Clocks are
// read here, beside the calls that they time. Sampling is the arg max of the logits, the lower id on a tie; the
// end-of-sequence token ends nothing. When standard input ends the process ends, in the middle of a call too.
//
// Several sequences run together: their prompts one after the other, and from then on one token of each in one batch.
//
// Built with CUDA, the whole model lies on the first device, which is the engine's own default for one device.

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "gguf.h"
#include "llama.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <deque>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

using json  = nlohmann::ordered_json;
using clock_ = std::chrono::steady_clock;

static uint64_t ns_since(clock_::time_point start) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(clock_::now() - start).count();
}

static uint64_t thread_cpu_ns() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return uint64_t(t.tv_sec) * 1000000000ull + t.tv_nsec;
}

static uint64_t resident_bytes() {
    std::ifstream statm("/proc/self/statm");
    uint64_t total = 0, resident = 0;
    statm >> total >> resident;
    return resident * sysconf(_SC_PAGESIZE);
}

// The lines of the log that say which kernels and buffers the engine chose.
struct Log {
    std::string              line;
    std::vector<std::string> proof;

    void take(const char * text) {
        fputs(text, stderr);
        for (const char * c = text; *c; c++) {
            if (*c != '\n') {
                line += *c;
                continue;
            }
            for (const char * mark :
                 { "buffer size", "repack", "AMX", "lash", "offloaded", "compute capability", "backend sampler" }) {
                if (line.find(mark) != std::string::npos && line.find("repack tensor") == std::string::npos) {
                    proof.push_back(line);
                    break;
                }
            }
            line.clear();
        }
    }
};

static Log the_log;

// Requests, read by a thread of their own so that the end of the input is seen during a call.
struct Requests {
    std::mutex              m;
    std::condition_variable there;
    std::deque<std::string> lines;

    void read() {
        std::string line;
        while (std::getline(std::cin, line)) {
            std::lock_guard<std::mutex> lock(m);
            lines.push_back(line);
            there.notify_one();
        }
        _exit(0);
    }

    std::string next() {
        std::unique_lock<std::mutex> lock(m);
        there.wait(lock, [&] { return !lines.empty(); });
        std::string line = lines.front();
        lines.pop_front();
        return line;
    }
};

// What the file says about its matrices.
struct Matrices {
    uint64_t  streamed_bytes = 0;   // read for one decoded token: all matrices of the layers, and the head
    double    weight_bits    = 0;   // mean over the layers, scales included
    double    head_bits      = 0;
    int       activation_bits = 0;  // widest type that a dot product of the layers rounds its activations to

    explicit Matrices(const char * path) {
        gguf_init_params params = { /*no_alloc*/ true, /*ctx*/ nullptr };
        std::unique_ptr<gguf_context, void (*)(gguf_context *)> file(gguf_init_from_file(path, params), gguf_free);
        if (!file) {
            throw std::runtime_error(std::string("cannot read the tensors of ") + path);
        }
        const bool tied = gguf_find_tensor(file.get(), "output.weight") < 0;
        uint64_t bytes = 0, bits_of = 0;
        for (int64_t i = 0; i < gguf_get_n_tensors(file.get()); i++) {
            const int64_t *   ne   = gguf_get_tensor_ne(file.get(), i);
            const std::string name = gguf_get_tensor_name(file.get(), i);
            const ggml_type   type = gguf_get_tensor_type(file.get(), i);
            const uint64_t    size = gguf_get_tensor_size(file.get(), i);
            if (ne[1] == 1) {
                continue;  // a vector
            }
            const double each = 8.0 * size / (double(ne[0]) * ne[1] * ne[2] * ne[3]);
            if (name == (tied ? "token_embd.weight" : "output.weight")) {
                head_bits = each;
                streamed_bytes += size;
            } else if (name != "token_embd.weight") {
                bytes += size;
                bits_of += uint64_t(ne[0]) * ne[1] * ne[2] * ne[3];
                activation_bits = std::max(activation_bits, bits_of_activations(type));
                streamed_bytes += size;
            }
        }
        weight_bits = bits_of ? 8.0 * bytes / bits_of : 0;
    }

    // ggml says itself which type the other side of a dot product is converted to.
    static int bits_of_activations(ggml_type type) {
        switch (ggml_get_type_traits_cpu(type)->vec_dot_type) {
            case GGML_TYPE_F32:  return 32;
            case GGML_TYPE_F16:
            case GGML_TYPE_BF16: return 16;
            default:             return 8;
        }
    }
};

// Index of the largest of `n` numbers, the lowest on a tie. The running maxima are independent of each other, and equals are
// looked for in blocks, so that the compiler makes vectors of both.
static int32_t arg_max(const float * x, int32_t n) {
    constexpr int32_t lanes = 16, block = 1024;
    float most[lanes];
    std::fill(most, most + lanes, x[0]);
    int32_t i = 0;
    for (; i + lanes <= n; i += lanes) {
        for (int32_t l = 0; l < lanes; l++) {
            most[l] = x[i + l] > most[l] ? x[i + l] : most[l];
        }
    }
    float best = *std::max_element(most, most + lanes);
    for (; i < n; i++) {
        best = std::max(best, x[i]);
    }
    for (int32_t from = 0; from < n; from += block) {
        const int32_t to = std::min(n, from + block);
        int32_t hits = 0;
        for (int32_t j = from; j < to; j++) {
            hits += x[j] == best;
        }
        if (hits > 0) {
            return int32_t(std::find(x + from, x + to, best) - x);
        }
    }
    return 0;  // no number is its own equal: the first logit is none
}

static ggml_type kv_type(const std::string & name) {
    for (ggml_type t : { GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_F32, GGML_TYPE_Q8_0 }) {
        if (name == ggml_type_name(t)) {
            return t;
        }
    }
    throw std::runtime_error("settings.kv: expected f16, bf16, f32 or q8_0, found " + name);
}

static llama_flash_attn_type flash_type(const std::string & name) {
    if (name == "auto") return LLAMA_FLASH_ATTN_TYPE_AUTO;
    if (name == "on")   return LLAMA_FLASH_ATTN_TYPE_ENABLED;
    if (name == "off")  return LLAMA_FLASH_ATTN_TYPE_DISABLED;
    throw std::runtime_error("settings.flash: expected auto, on or off, found " + name);
}

// Whether the sampler runs where the logits are; the engine then gives the id alone.
static bool samples_on_device(const std::string & name) {
    if (name == "host")   return false;
    if (name == "device") return true;
    throw std::runtime_error("settings.sampling: expected host or device, found " + name);
}

class Engine {
    llama_model *     model   = nullptr;
    llama_context *   context = nullptr;
    ggml_threadpool * pool    = nullptr;
    llama_batch       batch   = {};
    int32_t           vocab   = 0;
    int32_t           most    = 0;  // tokens of a batch
    int32_t           tokens  = 0;  // tokens that the cache can hold of a sequence
    bool              paused  = false;
    bool              on_device = false;  // the sampler
    uint64_t          cpu_ns  = 0;
    std::vector<int32_t>     used;  // tokens of each sequence in the cache
    std::vector<llama_token> last;  // the token of each that was drawn last

  public:
    json load(const json & ask) {
        if (model) {
            throw std::runtime_error("load: a model is loaded already");
        }
        const std::string path = ask.at("model");
        json settings = { { "flash", "auto" }, { "repack", true }, { "batch", 2048 }, { "ubatch", 512 },
                          { "kv", "f16" },     { "poll", 50 },   { "sampling", "host" } };
        const json wanted = ask.value("settings", json::object());
        for (const auto & [key, value] : wanted.items()) {
            if (!settings.contains(key)) {
                throw std::runtime_error("settings." + key + ": no such setting");
            }
            settings[key] = value;
        }
        const int threads = ask.at("threads");
        llama_model_params m = llama_model_default_params();
        const ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU);
        m.n_gpu_layers    = device ? -1 : 0;
        m.split_mode      = device ? LLAMA_SPLIT_MODE_NONE : m.split_mode;
        m.use_extra_bufts = settings.at("repack");
        model = llama_model_load_from_file(path.c_str(), m);
        if (!model) {
            throw std::runtime_error("llama.cpp does not load " + path);
        }
        tokens = ask.at("context");
        const int32_t sequences = ask.value("sequences", 1);
        if (sequences < 1) throw std::runtime_error("sequences: expected at least 1, found " + std::to_string(sequences));
        llama_context_params c = llama_context_default_params();
        // Each sequence has a part of its own, which the engine rounds to this many tokens.
        constexpr int32_t part = 256;
        c.n_ctx           = sequences == 1 ? tokens : sequences * ((tokens + part - 1) / part * part);
        c.n_seq_max       = sequences;
        c.n_batch         = settings.at("batch");
        c.n_ubatch        = settings.at("ubatch");
        c.n_threads       = threads;
        c.n_threads_batch = threads;
        c.flash_attn_type = flash_type(settings.at("flash"));
        c.type_k = c.type_v = kv_type(settings.at("kv"));
        c.no_perf         = true;
        // The sampler lives as long as the context, which lives as long as the process.
        on_device = samples_on_device(settings.at("sampling"));
        std::vector<llama_sampler_seq_config> samplers;
        for (int32_t n = 0; on_device && n < sequences; n++) {
            llama_sampler * sampler = llama_sampler_chain_init(llama_sampler_chain_default_params());
            llama_sampler_chain_add(sampler, llama_sampler_init_greedy());
            samplers.push_back({ n, sampler });
        }
        if (on_device) {
            c.samplers   = samplers.data();
            c.n_samplers = samplers.size();
        }
        context = llama_init_from_model(model, c);
        if (!context) {
            throw std::runtime_error("llama.cpp makes no context of these settings");
        }
        ggml_threadpool_params p = ggml_threadpool_params_default(threads);
        p.poll = settings.at("poll");
        pool   = ggml_threadpool_new(&p);
        llama_attach_threadpool(context, pool, nullptr);
        vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
        most  = llama_n_batch(context);
        if (sequences > most) {
            throw std::runtime_error("sequences: expected at most " + std::to_string(most) + ", the tokens of a batch");
        }
        batch = llama_batch_init(most, 0, 1);
        used.assign(sequences, 0);
        last.assign(sequences, 0);
        const Matrices read(path.c_str());
        the_log.proof.push_back(std::string("system_info: ") + llama_print_system_info());
        settings["threads"] = threads;
        settings["openmp"]  = false;
        if (sequences > 1) {
            settings["sequences"]  = sequences;
            settings["kv_unified"] = c.kv_unified;
        }
        settings["device"]  = device ? json(ggml_backend_dev_description(device)) : json(nullptr);
        return { { "ok", true },
                 { "name", "llama.cpp" },
                 { "version", llama_version() },
                 { "class",
                   { { "weight_bits", read.weight_bits },
                     { "head_bits", read.head_bits },
                     { "activation_bits", read.activation_bits },
                     { "kv", settings.at("kv") },
                     { "sums", read.activation_bits == 8 ? "i32 in a block, f32 over blocks" : "f32" } } },
                 { "streamed_bytes", read.streamed_bytes },
                 { "vocab", vocab },
                 { "logits", !on_device },
                 { "proof", the_log.proof },
                 { "settings", settings } };
    }

    json prefill(const json & ask) {
        using Ids = std::vector<llama_token>;
        if (!context) throw std::runtime_error("prefill: no model is loaded");
        if (used[0] != 0) throw std::runtime_error("prefill: the request before was not finished");
        const bool several = ask.contains("prompts");
        const auto lists   = [&](const char * one, const char * more) {
            return several ? ask.at(more).get<std::vector<Ids>>() : std::vector<Ids>{ ask.at(one).get<Ids>() };
        };
        const std::vector<Ids> prefixes = lists("prefix", "prefixes"), prompts = lists("prompt", "prompts");
        if (prompts.size() != used.size() || prefixes.size() != used.size()) {
            throw std::runtime_error("prompts: expected " + std::to_string(used.size()) + " sequences, for which the model "
                                     "was loaded, found " + std::to_string(prompts.size()));
        }
        for (size_t n = 0; n < prompts.size(); n++) {
            if (prompts[n].empty()) throw std::runtime_error("prompt: expected at least one token, found none");
            check(prefixes[n]);
            check(prompts[n]);
        }
        resume();
        for (size_t n = 0; n < prompts.size(); n++) {
            run(n, prefixes[n], Wanted::none);
        }
        llama_synchronize(context);
        const uint64_t cpu = thread_cpu_ns();
        const auto start = clock_::now();
        for (size_t n = 0; n < prompts.size(); n++) {
            if (int64_t(used[n]) + int64_t(prompts[n].size()) > tokens) {
                throw std::runtime_error("prompt: longer than the context");
            }
        }
        const uint64_t setup = ns_since(start);
        std::vector<json> logits;
        for (size_t n = 0; n < prompts.size(); n++) {
            run(n, prompts[n], Wanted::last);
            logits.push_back(draw(n, -1));
        }
        const uint64_t all = ns_since(start);
        cpu_ns = thread_cpu_ns() - cpu;
        json answer = { { "ok", true }, { "setup_ns", setup }, { "ns", all - setup } };
        if (several) {
            answer["ids"]    = last;
            answer["logits"] = logits;
        } else {
            answer["id"]    = last[0];
            answer["logit"] = logits[0];
        }
        return answer;
    }

    json decode(const json & ask) {
        const int    count = ask.at("tokens");
        const size_t all   = count * used.size();
        if (used.empty() || used[0] == 0) throw std::runtime_error("decode: no request is under way");
        resume();
        std::vector<llama_token> ids;
        std::vector<json>        logits;
        std::vector<uint64_t>    ns;
        ids.reserve(all), logits.reserve(all), ns.reserve(count);
        const uint64_t cpu = thread_cpu_ns();
        auto before = clock_::now();
        for (int i = 0; i < count; i++) {
            step();
            for (size_t n = 0; n < used.size(); n++) {
                logits.push_back(draw(n, n));
                ids.push_back(last[n]);
            }
            const auto now = clock_::now();
            ns.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(now - before).count());
            before = now;
        }
        cpu_ns += thread_cpu_ns() - cpu;
        return { { "ok", true }, { "ids", ids }, { "logits", logits }, { "ns", ns } };
    }

    // The logits of every token of a sequence of its own, written to a file: a row of F32 for each, as the host has them.
    json score(const json & ask) {
        const std::vector<llama_token> ids = ask.at("ids");
        const std::string path = ask.at("output");
        if (!context) throw std::runtime_error("score: no model is loaded");
        if (used[0] != 0) throw std::runtime_error("score: the request before was not finished");
        if (on_device) throw std::runtime_error("score: logits stay on the device where the sampler is");
        check(ids);
        resume();
        std::ofstream out(path, std::ios::binary | std::ios::trunc);
        run(0, ids, Wanted::all, &out);
        forget();
        out.close();
        if (!out) throw std::runtime_error("score: cannot write " + path);
        return { { "ok", true }, { "rows", ids.size() }, { "vocab", vocab } };
    }

    json finish() {
        if (!context) throw std::runtime_error("finish: no model is loaded");
        const uint64_t resident = resident_bytes();
        const uint64_t cpu = thread_cpu_ns();
        const auto start = clock_::now();
        forget();
        const uint64_t release = ns_since(start);
        cpu_ns += thread_cpu_ns() - cpu;
        return { { "ok", true }, { "release_ns", release }, { "cpu_ns", cpu_ns }, { "rss_bytes", resident } };
    }

    json rest() {
        if (pool && !paused) {
            ggml_threadpool_pause(pool);
            paused = true;
        }
        return { { "ok", true } };
    }

  private:
    void resume() {
        if (paused) {
            ggml_threadpool_resume(pool);
            paused = false;
        }
    }

    void check(const std::vector<llama_token> & ids) const {
        for (llama_token t : ids) {
            if (t < 0 || t >= vocab) throw std::runtime_error("prompt: no token has id " + std::to_string(t));
        }
    }

    void forget() {
        llama_memory_clear(llama_get_memory(context), false);
        std::fill(used.begin(), used.end(), 0);
    }

    // Row `i` of the batch is the next token of sequence `n`.
    void put(int32_t i, size_t n, llama_token id, bool logits) {
        if (used[n] >= tokens) {
            throw std::runtime_error("the context of " + std::to_string(tokens) + " tokens is full");
        }
        batch.token[i]     = id;
        batch.pos[i]       = used[n]++;
        batch.n_seq_id[i]  = 1;
        batch.seq_id[i][0] = llama_seq_id(n);
        batch.logits[i]    = logits;
    }

    void forward() {
        const int32_t code = llama_decode(context, batch);
        if (code != 0) {
            throw std::runtime_error("llama_decode answers " + std::to_string(code));
        }
    }

    // The last token of every sequence through the model, in one batch.
    void step() {
        batch.n_tokens = int32_t(used.size());
        for (size_t n = 0; n < used.size(); n++) {
            put(int32_t(n), n, last[n], true);
        }
        forward();
    }

    // Of which tokens the logits are wanted.
    enum class Wanted { none, last, all };

    // Runs tokens of a sequence through the model; where all logits are wanted, they go to `rows`.
    void run(size_t n, const std::vector<llama_token> & ids, Wanted wanted, std::ofstream * rows = nullptr) {
        for (size_t done = 0; done < ids.size(); done += batch.n_tokens) {
            batch.n_tokens = int32_t(std::min<size_t>(most, ids.size() - done));
            for (int32_t i = 0; i < batch.n_tokens; i++) {
                const bool end = done + i + 1 == ids.size();
                put(i, n, ids[done + i], wanted == Wanted::all || (wanted == Wanted::last && end));
            }
            forward();
            for (int32_t i = 0; rows && i < batch.n_tokens; i++) {
                const float * logits = llama_get_logits_ith(context, i);
                if (!logits) throw std::runtime_error("llama.cpp gave no logits");
                rows->write(reinterpret_cast<const char *>(logits), std::streamsize(vocab) * sizeof(float));
            }
        }
    }

    // The arg max of the logits of row `i`, kept as the last token of sequence `n`; its logit is returned, or null where the
    // engine keeps it.
    json draw(size_t n, int32_t i) {
        if (on_device) {
            last[n] = llama_get_sampled_token_ith(context, i);
            if (last[n] == LLAMA_TOKEN_NULL) throw std::runtime_error("llama.cpp sampled no token on the device");
            return nullptr;
        }
        const float * logits = llama_get_logits_ith(context, i);
        if (!logits) throw std::runtime_error("llama.cpp gave no logits");
        last[n] = arg_max(logits, vocab);
        return logits[last[n]];
    }
};

int main() {
    llama_log_set([](ggml_log_level, const char * text, void *) { the_log.take(text); }, nullptr);
    llama_backend_init();
    static Requests requests;
    std::thread(&Requests::read, &requests).detach();
    Engine engine;
    for (;;) {
        json answer;
        try {
            const json        ask = json::parse(requests.next());
            const std::string op  = ask.at("op");
            if (op == "quit") _exit(0);
            answer = op == "load"      ? engine.load(ask)
                     : op == "prefill" ? engine.prefill(ask)
                     : op == "decode"  ? engine.decode(ask)
                     : op == "score"   ? engine.score(ask)
                     : op == "finish"  ? engine.finish()
                     : op == "rest"    ? engine.rest()
                                       : throw std::runtime_error("op: no such operation: " + op);
        } catch (const std::exception & e) {
            answer = { { "ok", false }, { "why", e.what() } };
        }
        // A log line may hold bytes that are no UTF-8; they are replaced, not refused.
        std::cout << answer.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
    }
}
