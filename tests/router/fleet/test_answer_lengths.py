from router.fleet.answer_lengths import WINDOW, AnswerLengths


def test_nothing_is_known_before_the_first_answer() -> None:
    answers = AnswerLengths()
    assert answers.mean_tokens("m") is None
    answers.observe("m", 100)
    assert answers.mean_tokens("m") == 100
    assert answers.mean_tokens("other") is None
    assert answers.mean_tokens(None) is None


def test_few_answers_count_alike_and_many_make_the_old_ones_fade() -> None:
    answers = AnswerLengths()
    for tokens in (100, 200, 600):
        answers.observe("m", tokens)
    assert answers.mean_tokens("m") == 300
    for _ in range(10 * WINDOW):
        answers.observe("m", 50)
    assert answers.mean_tokens("m") == 50
