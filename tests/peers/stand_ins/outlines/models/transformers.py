class TransformerTokenizer:
    def __init__(self, tokenizer: object) -> None:
        pass
