# needs: g++
cat >a.cc <<'END'
#include <algorithm>
#include <condition_variable>
#include <future>
#include <iostream>
#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>
struct Loud { ~Loud() { std::cout << "unwound\n"; } };
static int deep(int n) { Loud l; if (n == 0) throw std::runtime_error("deep"); return deep(n - 1) + 1; }
int main() {
    try { deep(3); } catch (const std::exception &e) { std::cout << e.what() << "\n"; }
    std::mutex m; std::condition_variable c; int turn = 0; std::vector<std::thread> ts; std::string order;
    for (int i = 0; i < 8; i++) ts.emplace_back([&, i] {
        std::unique_lock<std::mutex> l(m);
        c.wait(l, [&] { return turn == i; });
        order += char('a' + i); turn++; c.notify_all();
    });
    for (auto &t : ts) t.join();
    std::cout << order << "\n";
    std::vector<std::future<long>> fs;
    for (int i = 0; i < 8; i++) fs.push_back(std::async(std::launch::async, [i] { if (i == 5) throw i; return i * 1000L; }));
    long sum = 0; for (auto &f : fs) try { sum += f.get(); } catch (int i) { std::cout << "caught " << i << "\n"; }
    std::cout << sum << "\n";
    std::map<std::string, int> words; std::string text = "a b a c b a"; std::istringstream in(text);
    for (std::string word; in >> word;) words[word]++;
    for (auto &[w, n] : words) std::cout << w << n << " ";
    std::cout << std::endl; throw std::logic_error("to abort");
}
END
g++ -std=c++17 -pthread -o a a.cc
./a || echo "exit code $?"
